// Flink's own operators, played with scripts from standard input, without a cluster. The language is in flink.py.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;

import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.TimerService;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.operators.KeyedProcessOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.operators.co.IntervalJoinOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.GlobalWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.evictors.CountEvictor;
import org.apache.flink.streaming.api.windowing.triggers.CountTrigger;
import org.apache.flink.streaming.api.windowing.triggers.EventTimeTrigger;
import org.apache.flink.streaming.api.windowing.triggers.PurgingTrigger;
import org.apache.flink.streaming.api.windowing.triggers.Trigger;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.api.windowing.windows.Window;
import org.apache.flink.streaming.runtime.operators.windowing.WindowOperatorBuilder;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.util.AbstractStreamOperatorTestHarness;
import org.apache.flink.streaming.util.KeyedOneInputStreamOperatorTestHarness;
import org.apache.flink.streaming.util.KeyedTwoInputStreamOperatorTestHarness;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

public final class FlinkJudge {
    /** A row is its key and the rest of its words: a number for windows and joins, commands for timers. */
    private static final TypeInformation<Tuple2<String, String>> ROW = Types.TUPLE(Types.STRING, Types.STRING);

    private static final OutputTag<Tuple2<String, String>> LATE = new OutputTag<>("late", ROW);
    private static final OutputTag<Tuple2<String, String>> LATE_RIGHT = new OutputTag<>("late-right", ROW);

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            List<String> steps = new ArrayList<>();
            for (String step = input.readLine(); step != null && !step.equals("."); step = input.readLine()) {
                steps.add(step);
            }
            StringBuilder answer = new StringBuilder();
            try (Played played = played(line.split(" "))) {
                for (int at = 0; at < steps.size(); at++) {
                    played.step(steps.get(at).split(" "));
                    played.drain(at, answer);
                }
            } catch (Exception error) {
                answer.append("! ").append(String.valueOf(error).replace('\n', ' ')).append('\n');
            }
            answers.print(answer.append(".\n"));
            answers.flush();
        }
    }

    private static Played played(String[] operator) throws Exception {
        switch (operator[0]) {
            case "timers":
                return new OneInput(new KeyedProcessOperator<>(new Timers()));
            case "join":
                return new TwoInputs(Long.parseLong(operator[1]), Long.parseLong(operator[2]));
            default:
                return new OneInput(windows(operator));
        }
    }

    /** An operator inside Flink's harness. */
    private abstract static class Played implements AutoCloseable {
        protected AbstractStreamOperatorTestHarness<String> harness;

        abstract void row(int input, Tuple2<String, String> row, long time) throws Exception;

        abstract void watermark(long time) throws Exception;

        void step(String[] words) throws Exception {
            switch (words[0]) {
                case "w":
                    watermark(Long.parseLong(words[1]));
                    break;
                case "p":
                    harness.setProcessingTime(Long.parseLong(words[1]));
                    break;
                default:
                    String rest = String.join(" ", List.of(words).subList(3, words.length));
                    row(words[0].equals("2") ? 2 : 1, Tuple2.of(words[1], rest), Long.parseLong(words[2]));
            }
        }

        void drain(int step, StringBuilder answer) {
            for (Object one = harness.getOutput().poll(); one != null; one = harness.getOutput().poll()) {
                if (one instanceof StreamRecord) {
                    StreamRecord<?> result = (StreamRecord<?>) one;
                    answer.append(step).append(" r ").append(result.getTimestamp()).append(' ');
                    answer.append(result.getValue()).append('\n');
                }
            }
            drainLate(step, 'l', harness.getSideOutput(LATE), answer);
            drainLate(step, 'm', harness.getSideOutput(LATE_RIGHT), answer);
        }

        private static void drainLate(
                int step, char kind, Queue<StreamRecord<Tuple2<String, String>>> late, StringBuilder answer) {
            if (late == null) {
                return;
            }
            for (StreamRecord<Tuple2<String, String>> one = late.poll(); one != null; one = late.poll()) {
                answer.append(step).append(' ').append(kind).append(' ').append(one.getTimestamp()).append(' ');
                answer.append(one.getValue().f0).append(' ').append(one.getValue().f1).append('\n');
            }
        }

        @Override
        public void close() throws Exception {
            harness.close();
        }
    }

    private static final class OneInput extends Played {
        private final KeyedOneInputStreamOperatorTestHarness<String, Tuple2<String, String>, String> input;

        OneInput(OneInputStreamOperator<Tuple2<String, String>, String> operator) throws Exception {
            input = new KeyedOneInputStreamOperatorTestHarness<>(operator, row -> row.f0, Types.STRING);
            harness = input;
            input.open();
        }

        @Override
        void row(int number, Tuple2<String, String> row, long time) throws Exception {
            input.processElement(row, time);
        }

        @Override
        void watermark(long time) throws Exception {
            input.processWatermark(time);
        }
    }

    private static final class TwoInputs extends Played {
        private final KeyedTwoInputStreamOperatorTestHarness<
                        String, Tuple2<String, String>, Tuple2<String, String>, String>
                inputs;

        TwoInputs(long lower, long upper) throws Exception {
            ExecutionConfig config = new ExecutionConfig();
            inputs =
                    new KeyedTwoInputStreamOperatorTestHarness<>(
                            new IntervalJoinOperator<>(
                                    lower,
                                    upper,
                                    true,
                                    true,
                                    LATE,
                                    LATE_RIGHT,
                                    ROW.createSerializer(config.getSerializerConfig()),
                                    ROW.createSerializer(config.getSerializerConfig()),
                                    new Pairs()),
                            row -> row.f0,
                            row -> row.f0,
                            Types.STRING);
            harness = inputs;
            inputs.open();
        }

        @Override
        void row(int number, Tuple2<String, String> row, long time) throws Exception {
            if (number == 1) {
                inputs.processElement1(row, time);
            } else {
                inputs.processElement2(row, time);
            }
        }

        @Override
        void watermark(long time) throws Exception {
            inputs.processBothWatermarks(new Watermark(time));
        }
    }

    private static OneInputStreamOperator<Tuple2<String, String>, String> windows(String[] operator) {
        long first = Long.parseLong(operator[2]);
        long second = Long.parseLong(operator[3]);
        Duration offset = Duration.ofMillis(Long.parseLong(operator[4]));
        switch (operator[0]) {
            case "tumbling":
                return windows(operator, TumblingEventTimeWindows.of(Duration.ofMillis(first), offset), null, 0);
            case "sliding":
                return windows(
                        operator,
                        SlidingEventTimeWindows.of(Duration.ofMillis(first), Duration.ofMillis(second), offset),
                        null,
                        0);
            case "session":
                return windows(operator, EventTimeSessionWindows.withGap(Duration.ofMillis(first)), null, 0);
            case "count":
                return second == 0
                        ? windows(operator, GlobalWindows.create(), PurgingTrigger.of(CountTrigger.of(first)), 0)
                        : windows(operator, GlobalWindows.create(), CountTrigger.of(second), first);
            default:
                throw new IllegalArgumentException("no operator " + operator[0]);
        }
    }

    private static <W extends Window> OneInputStreamOperator<Tuple2<String, String>, String> windows(
            String[] operator,
            WindowAssigner<Object, W> assigner,
            Trigger<? super Tuple2<String, String>, ? super W> trigger,
            long kept) {
        @SuppressWarnings("unchecked")
        Trigger<? super Tuple2<String, String>, ? super W> used =
                trigger != null ? trigger : (Trigger<Object, W>) (Trigger<Object, ?>) EventTimeTrigger.create();
        WindowOperatorBuilder<Tuple2<String, String>, String, W> builder =
                new WindowOperatorBuilder<>(assigner, used, new ExecutionConfig(), ROW, row -> row.f0, Types.STRING);
        if (trigger == null) {
            builder.allowedLateness(Duration.ofMillis(Long.parseLong(operator[5])));
            builder.sideOutputLateData(LATE);
        }
        if (kept > 0) {
            builder.evictor(CountEvictor.of(kept));
        }
        return operator[1].equals("list")
                ? builder.process(new Listed<>())
                : builder.aggregate(new Sum(), new Summed<>(), Types.TUPLE(Types.LONG, Types.LONG));
    }

    private static String named(String key, Window window, String value) {
        if (window instanceof TimeWindow) {
            TimeWindow time = (TimeWindow) window;
            return key + " " + time.getStart() + " " + time.getEnd() + " " + value;
        }
        return key + " 0 0 " + value;
    }

    /** The sum of the values and their number. */
    private static final class Sum
            implements AggregateFunction<Tuple2<String, String>, Tuple2<Long, Long>, Tuple2<Long, Long>> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, 0L);
        }

        @Override
        public Tuple2<Long, Long> add(Tuple2<String, String> row, Tuple2<Long, Long> so) {
            return Tuple2.of(so.f0 + Long.parseLong(row.f1), so.f1 + 1);
        }

        @Override
        public Tuple2<Long, Long> getResult(Tuple2<Long, Long> so) {
            return so;
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> one, Tuple2<Long, Long> other) {
            return Tuple2.of(one.f0 + other.f0, one.f1 + other.f1);
        }
    }

    private static final class Summed<W extends Window>
            extends ProcessWindowFunction<Tuple2<Long, Long>, String, String, W> {
        @Override
        public void process(String key, Context context, Iterable<Tuple2<Long, Long>> sums, Collector<String> out) {
            Tuple2<Long, Long> sum = sums.iterator().next();
            out.collect(named(key, context.window(), sum.f0 + "," + sum.f1));
        }
    }

    private static final class Listed<W extends Window>
            extends ProcessWindowFunction<Tuple2<String, String>, String, String, W> {
        @Override
        public void process(
                String key, Context context, Iterable<Tuple2<String, String>> rows, Collector<String> out) {
            List<String> values = new ArrayList<>();
            rows.forEach(row -> values.add(row.f1));
            out.collect(named(key, context.window(), String.join(",", values)));
        }
    }

    private static final class Pairs
            extends ProcessJoinFunction<Tuple2<String, String>, Tuple2<String, String>, String> {
        @Override
        public void processElement(
                Tuple2<String, String> left, Tuple2<String, String> right, Context context, Collector<String> out) {
            out.collect(
                    String.join(
                            " ",
                            left.f0,
                            left.f1,
                            right.f1,
                            String.valueOf(context.getLeftTimestamp()),
                            String.valueOf(context.getRightTimestamp())));
        }
    }

    /** A row is commands, "se 5" to set a timer by event time, "de 5" to delete it, "sp", "dp" by the clock, "again 2 10" to set those that fire again. */
    private static final class Timers extends KeyedProcessFunction<String, Tuple2<String, String>, String> {
        private transient ValueState<Long> times;
        private transient ValueState<Long> later;

        @Override
        public void open(OpenContext context) {
            times = getRuntimeContext().getState(new ValueStateDescriptor<>("times", Types.LONG));
            later = getRuntimeContext().getState(new ValueStateDescriptor<>("later", Types.LONG));
        }

        @Override
        public void processElement(Tuple2<String, String> row, Context context, Collector<String> out)
                throws Exception {
            String[] words = row.f1.split(" ");
            TimerService timers = context.timerService();
            long time = Long.parseLong(words[1]);
            switch (words[0]) {
                case "se":
                    timers.registerEventTimeTimer(time);
                    break;
                case "de":
                    timers.deleteEventTimeTimer(time);
                    break;
                case "sp":
                    timers.registerProcessingTimeTimer(time);
                    break;
                case "dp":
                    timers.deleteProcessingTimeTimer(time);
                    break;
                case "again":
                    times.update(time);
                    later.update(Long.parseLong(words[2]));
                    break;
                default:
                    throw new IllegalArgumentException("no command " + row.f1);
            }
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            boolean byEvent = context.timeDomain() == org.apache.flink.streaming.api.TimeDomain.EVENT_TIME;
            TimerService timers = context.timerService();
            out.collect(context.getCurrentKey() + " " + (byEvent ? "e " : "p ") + time + " " + timers.currentWatermark());
            Long left = times.value();
            if (left != null && left > 0) {
                times.update(left - 1);
                if (byEvent) {
                    timers.registerEventTimeTimer(time + later.value());
                } else {
                    timers.registerProcessingTimeTimer(time + later.value());
                }
            }
        }
    }
}
