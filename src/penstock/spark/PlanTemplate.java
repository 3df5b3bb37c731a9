package penstock;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.rdd.PartitionPruningRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.rdd.UnionRDD;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionWithRandomSeed;
import org.apache.spark.sql.catalyst.expressions.LeafExpression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.expressions.UnscaledValue;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.RangeExec;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SQLExecutionRDD;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.UnionExec;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DatetimeType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StringType;
import scala.Function1;
import scala.runtime.AbstractPartialFunction;

/**
 * A physical plan that Spark has made once, with slots for what differs from batch to batch: the rows that it reads, the Python functions
 * that it calls, and numbers. Filling the slots gives a plan that runs one batch, without analysing, optimising or planning anything.
 */
public final class PlanTemplate {
    private SparkPlan plan;
    private final Map rows = new HashMap();
    private final Map pruned = new HashMap();
    private final Map tasks = new HashMap();
    private final Map values = new HashMap();
    private IdentityHashMap filled;
    private SparkPlan ran;

    /** A template of this plan. The first template, which is made by its name alone, only makes others. */
    public PlanTemplate of(SparkPlan plan) {
        PlanTemplate made = new PlanTemplate();
        made.plan = plan;
        return made;
    }

    /** The slots that are in the plan, one in each line. */
    public String slots() {
        return slots(plan);
    }

    public String slots(QueryPlan given) {
        Set found = new TreeSet();
        collect(given, found);
        return String.join("\n", found);
    }

    /** A column that stands for a number of each batch. */
    public Column value(long number) {
        return ExpressionUtils.column(new ValueSlot(number));
    }

    /**
     * Why the plan must not be used for other batches, or nothing. `slots`: the numbers of its row slots, each between blanks; of those for
     * cached rows with a c.
     */
    public String refusal(LogicalPlan analyzed, String slots) {
        if (analyzed.containsPattern(TreePattern$.MODULE$.CURRENT_LIKE())) {
            return "it uses the current time";
        }
        if (analyzed.containsPattern(TreePattern$.MODULE$.PLAN_EXPRESSION())) {
            return "it has a subquery";
        }
        String found = logical(analyzed, slots);
        return found.isEmpty() ? physical(plan, slots) : found;
    }

    /** Whether a plan has a node of this name. */
    public boolean has(QueryPlan node, String name) {
        boolean found = node.nodeName().equals(name);
        for (int at = 0; !found && at < node.children().size(); at++) {
            found = has((QueryPlan) node.children().apply(at), name);
        }
        return found;
    }

    private static String logical(QueryPlan node, String slots) {
        if (node instanceof LogicalRDD) {
            String slot = " " + ((LogicalRDD) node).rdd().id();
            if (!slots.contains(slot + " ") && !slots.contains(slot + "c ")) {
                return "it reads rows that Penstock does not know";
            }
        }
        if (node.nodeName().equals("Sample")) {
            return "it takes a sample";
        }
        for (int at = 0; at < node.expressions().size(); at++) {
            String found = changing((Expression) node.expressions().apply(at));
            if (!found.isEmpty()) {
                return found;
            }
        }
        for (int at = 0; at < node.children().size(); at++) {
            String found = logical((QueryPlan) node.children().apply(at), slots);
            if (!found.isEmpty()) {
                return found;
            }
        }
        return "";
    }

    /** Why an expression may have another value when it is planned again, or nothing. */
    private static String changing(Expression expression) {
        if (expression instanceof ExpressionWithRandomSeed) {
            return "it is random: " + expression.nodeName();
        }
        if (expression instanceof Cast && moment((Cast) expression)) {
            return "it uses the current time: " + expression.sql();
        }
        if (expression instanceof RuntimeReplaceable) {
            String found = changing(((RuntimeReplaceable) expression).replacement());
            if (!found.isEmpty()) {
                return found;
            }
        }
        for (int at = 0; at < expression.children().size(); at++) {
            String found = changing((Expression) expression.children().apply(at));
            if (!found.isEmpty()) {
                return found;
            }
        }
        return "";
    }

    /** Whether a text may be that of a moment, such as 'now' or 'today'. */
    private static boolean moment(Cast cast) {
        Expression text = cast.child();
        boolean time = cast.dataType() instanceof DatetimeType;
        if (!time || !text.foldable() || !(text.dataType() instanceof StringType)) {
            return false;
        }
        String value = text instanceof Literal ? String.valueOf(((Literal) text).value()).trim() : "";
        return value.isEmpty() || Character.isLetter(value.charAt(0));
    }

    private static String physical(SparkPlan node, String slots) {
        String slot = "";
        if (node instanceof RDDScanExec) {
            slot = " " + ((RDDScanExec) node).rdd().id() + " ";
        } else if (node instanceof InMemoryTableScanExec) {
            slot = " " + number(((InMemoryTableScanExec) node).relation()) + "c ";
        } else if (node instanceof ReusedExchangeExec) {
            return physical(((ReusedExchangeExec) node).child(), slots);
        } else if (node.children().isEmpty()) {
            boolean constant = node instanceof RangeExec || node instanceof LocalTableScanExec;
            return constant ? "" : "it reads " + node.nodeName();
        }
        if (node.children().isEmpty()) {
            return slots.contains(slot) ? "" : "it reads rows that are cached or come from an RDD";
        }
        for (int at = 0; at < node.children().size(); at++) {
            String found = physical((SparkPlan) node.children().apply(at), slots);
            if (!found.isEmpty()) {
                return found;
            }
        }
        return "";
    }

    /** The columns of row slots that the plan uses: in each line the number of a slot, and the positions of its columns. */
    public String columns() {
        Set used = new HashSet();
        use(plan.output(), used);
        use(plan, used);
        Map read = new TreeMap();
        read(plan, used, read);
        StringBuilder text = new StringBuilder();
        for (Object slot : read.keySet()) {
            text.append(slot);
            for (Object position : (Set) read.get(slot)) {
                text.append(' ').append(position);
            }
            text.append('\n');
        }
        return text.toString();
    }

    /** The rows for a slot will have only the columns at these positions. */
    public void prune(int slot, String positions) {
        Set kept = new HashSet();
        for (Object position : Arrays.asList(positions.split(" "))) {
            kept.add(Integer.valueOf((String) position));
        }
        pruned.put(Integer.valueOf(slot), kept);
    }

    /** Rows for the slot of this number, which is that of a placeholder RDD: an RDD of rows, or a cached relation. */
    public void rows(int slot, Object given) {
        rows.put(Integer.valueOf(slot), given);
    }

    /** The pickled function for the slot of this name. */
    public void task(String slot, byte[] command) {
        tasks.put(slot, command);
    }

    public void task(String slot, PythonFunction function) {
        tasks.put(slot, function);
    }

    /** Values for slots: pairs of numbers, separated by blanks. */
    public void values(String pairs) {
        String[] numbers = pairs.isEmpty() ? new String[0] : pairs.split(" ");
        for (int at = 0; at < numbers.length; at += 2) {
            values.put(Long.valueOf(numbers[at]), Long.valueOf(numbers[at + 1]));
        }
    }

    /** Fill the plan and return its rows. Nothing has run yet. */
    public RDD fill() {
        scala.Option before = SparkSession.getActiveSession();
        SparkSession.setActiveSession(plan.session());  // nodes take their session from the thread in which they are made
        try {
            filled = new IdentityHashMap();
            ran = fill(plan);
            filled = null;
            RDD result = new SQLExecutionRDD(ran.execute(), ran.conf());
            rows.clear();
            tasks.clear();
            return result;
        } finally {
            if (before.isDefined()) {
                SparkSession.setActiveSession((SparkSession) before.get());
            } else {
                SparkSession.clearActiveSession();
            }
        }
    }

    /** The metrics with this prefix that were observed while the plan ran: for each a line with its name and its numbers. Once. */
    public String observed(String prefix) {
        String text = lines(prefix, org.apache.spark.sql.execution.CollectMetricsExec$.MODULE$.collect(ran));
        ran = null;
        return text;
    }

    public String lines(String prefix, scala.collection.immutable.Map metrics) {
        StringBuilder text = new StringBuilder();
        scala.collection.Iterator all = metrics.iterator();
        while (all.hasNext()) {
            scala.Tuple2 one = (scala.Tuple2) all.next();
            org.apache.spark.sql.Row row = (org.apache.spark.sql.Row) one._2();
            if (!((String) one._1()).startsWith(prefix)) {
                continue;
            }
            text.append(one._1());
            for (int at = 0; at < row.length(); at++) {
                text.append('\t').append(row.get(at));
            }
            text.append('\n');
        }
        return text.toString();
    }

    /** The parts of a union of this many RDDs in their order, each with its own partitions, or null if the rows are no such union. */
    public RDD[] parts(RDD rdd, int count) {
        RDD union = rdd;
        while (!(union instanceof UnionRDD) && union.dependencies().size() == 1
            && union.dependencies().apply(0) instanceof OneToOneDependency) {
            union = ((OneToOneDependency) union.dependencies().apply(0)).rdd();
        }
        if (!(union instanceof UnionRDD) || ((UnionRDD) union).rdds().size() != count) {
            return null;
        }
        RDD[] parts = new RDD[count];
        int partition = 0;
        for (int at = 0; at < count; at++) {
            scala.collection.immutable.Set own = scala.collection.immutable.Set$.MODULE$.empty();
            for (int end = partition + ((RDD) ((UnionRDD) union).rdds().apply(at)).getNumPartitions(); partition < end; partition++) {
                own = (scala.collection.immutable.Set) own.incl(Integer.valueOf(partition));
            }
            parts[at] = PartitionPruningRDD.create(rdd, own);
        }
        return parts;
    }

    private SparkPlan fill(SparkPlan node) {
        Object known = filled.get(node);
        if (known == null) {
            known = inner(node);
            filled.put(node, known);
        }
        return (SparkPlan) known;
    }

    private SparkPlan inner(SparkPlan node) {
        if (node instanceof RDDScanExec) {
            int slot = ((RDDScanExec) node).rdd().id();
            Object given = rows.get(Integer.valueOf(slot));
            if (given == null) {
                return node;
            }
            Object[] all = replaced(node, RDD.class, given);
            all[0] = kept(slot, node.output());
            return (SparkPlan) node.makeCopy(all);
        }
        if (node instanceof InMemoryTableScanExec) {
            InMemoryRelation relation = ((InMemoryTableScanExec) node).relation();
            int slot = number(relation);
            Object given = rows.get(Integer.valueOf(slot));
            if (given == null) {
                return node;
            }
            Object own = ((InMemoryRelation) given).withOutput(kept(slot, relation.output()));
            return (SparkPlan) node.makeCopy(replaced(node, InMemoryRelation.class, own));
        }
        if (node instanceof ReusedExchangeExec) {
            SparkPlan child = fill(((ReusedExchangeExec) node).child());
            return (SparkPlan) node.makeCopy(replaced(node, SparkPlan.class, child));
        }
        scala.collection.immutable.Seq children = node.children();
        scala.collection.mutable.ArrayBuffer own = new scala.collection.mutable.ArrayBuffer();
        for (int at = 0; at < children.size(); at++) {
            own.addOne(fill((SparkPlan) children.apply(at)));
        }
        SparkPlan copy = (SparkPlan) node.withNewChildren(own.toSeq());
        return (SparkPlan) copy.transformExpressionsUp(new Slots(this));
    }

    private scala.collection.immutable.Seq kept(int slot, scala.collection.immutable.Seq output) {
        Set positions = (Set) pruned.get(Integer.valueOf(slot));
        scala.collection.mutable.ArrayBuffer own = new scala.collection.mutable.ArrayBuffer();
        for (int at = 0; at < output.size(); at++) {
            if (positions == null || positions.contains(Integer.valueOf(at))) {
                own.addOne(output.apply(at));
            }
        }
        return own.toSeq();
    }

    /** Collects the ids of attributes that the nodes of a plan use. */
    private static void use(SparkPlan node, Set used) {
        if (node instanceof ReusedExchangeExec) {
            SparkPlan child = ((ReusedExchangeExec) node).child();
            use(child.output(), used);
            use(child, used);
        } else if (node instanceof InMemoryTableScanExec) {
            use(((InMemoryTableScanExec) node).attributes(), used);
        } else if (!(node instanceof RDDScanExec)) {
            for (int at = 0; at < node.expressions().size(); at++) {
                use(((Expression) node.expressions().apply(at)).references().toSeq(), used);
            }
        }
        for (int at = 0; at < node.children().size(); at++) {
            SparkPlan child = (SparkPlan) node.children().apply(at);
            if (node instanceof UnionExec) {
                use(child.output(), used);
            }
            use(child, used);
        }
    }

    private static void use(scala.collection.immutable.Seq attributes, Set used) {
        for (int at = 0; at < attributes.size(); at++) {
            used.add(Long.valueOf(((Attribute) attributes.apply(at)).exprId().id()));
        }
    }

    private static void read(SparkPlan node, Set used, Map read) {
        if (node instanceof RDDScanExec) {
            read(((RDDScanExec) node).rdd().id(), node.output(), used, read);
        } else if (node instanceof InMemoryTableScanExec) {
            InMemoryRelation relation = ((InMemoryTableScanExec) node).relation();
            read(number(relation), relation.output(), used, read);
        } else if (node instanceof ReusedExchangeExec) {
            read(((ReusedExchangeExec) node).child(), used, read);
        }
        for (int at = 0; at < node.children().size(); at++) {
            read((SparkPlan) node.children().apply(at), used, read);
        }
    }

    private static void read(int slot, scala.collection.immutable.Seq output, Set used, Map read) {
        Set positions = (Set) read.get(Integer.valueOf(slot));
        if (positions == null) {
            positions = new TreeSet();
            read.put(Integer.valueOf(slot), positions);
        }
        for (int at = 0; at < output.size(); at++) {
            if (used.contains(Long.valueOf(((Attribute) output.apply(at)).exprId().id()))) {
                positions.add(Integer.valueOf(at));
            }
        }
    }

    /** The number of the slot of which a cached relation is a copy; -1 if it is something else. */
    private static int number(InMemoryRelation relation) {
        SparkPlan plan = relation.cachedPlan();
        while (plan instanceof WholeStageCodegenExec || plan instanceof InputAdapter) {
            plan = (SparkPlan) plan.children().apply(0);
        }
        return plan instanceof RDDScanExec ? ((RDDScanExec) plan).rdd().id() : -1;
    }

    private static Object[] replaced(Object node, Class kind, Object given) {
        scala.Product product = (scala.Product) node;
        Object[] all = new Object[product.productArity()];
        for (int at = 0; at < all.length; at++) {
            Object own = product.productElement(at);
            all[at] = kind.isInstance(own) ? given : own;
        }
        return all;
    }

    private static void collect(QueryPlan node, Set found) {
        if (node instanceof RDDScanExec) {
            found.add("rows " + ((RDDScanExec) node).rdd().id());
        } else if (node instanceof LogicalRDD) {
            found.add("rows " + ((LogicalRDD) node).rdd().id());
        } else if (node instanceof InMemoryTableScanExec) {
            found.add("rows " + number(((InMemoryTableScanExec) node).relation()));
        } else if (node instanceof ReusedExchangeExec) {
            collect(((ReusedExchangeExec) node).child(), found);
        }
        node.transformExpressionsUp(new Found(found));
        for (int at = 0; at < node.children().size(); at++) {
            collect((QueryPlan) node.children().apply(at), found);
        }
    }

    /** Stands for a number of each batch. Spark must not compute with it: it is no constant, and has no value yet. */
    public static final class ValueSlot extends LeafExpression implements Unevaluable {
        final long number;

        public ValueSlot(long number) {
            this.number = number;
        }

        public boolean nullable() {
            return false;
        }

        public boolean foldable() {
            return false;
        }

        public DataType dataType() {
            return DataTypes.LongType;
        }

        public Object eval(InternalRow row) {
            throw new IllegalStateException("value slot " + number + " of a plan was not filled");
        }

        public ExprCode doGenCode(CodegenContext context, ExprCode code) {
            throw new IllegalStateException("value slot " + number + " of a plan was not filled");
        }

        public int productArity() {
            return 1;
        }

        public Object productElement(int at) {
            return Long.valueOf(number);
        }

        public boolean canEqual(Object other) {
            return other instanceof ValueSlot;
        }

        public boolean equals(Object other) {
            return other instanceof ValueSlot && ((ValueSlot) other).number == number;
        }

        public int hashCode() {
            return Long.hashCode(number);
        }
    }

    /** Puts values and functions into the slots of expressions. A value is a reference in generated code, which stays the same. */
    public static final class Slots extends AbstractPartialFunction {
        private final PlanTemplate of;

        public Slots(PlanTemplate of) {
            this.of = of;
        }

        public boolean isDefinedAt(Object x) {
            return x instanceof ValueSlot || x instanceof PythonUDF;
        }

        public Object applyOrElse(Object x, Function1 otherwise) {
            if (x instanceof ValueSlot) {
                return reference(((Long) of.values.get(Long.valueOf(((ValueSlot) x).number))).longValue());
            }
            if (x instanceof PythonUDF) {
                Object given = of.tasks.get(((PythonUDF) x).name());
                return given == null ? x : ((PythonUDF) x).makeCopy(replaced(x, PythonFunction.class, function((PythonUDF) x, given)));
            }
            return otherwise.apply(x);
        }

        private static Object reference(long value) {
            return new UnscaledValue(new Literal(Decimal.createUnsafe(value, 18, 0), DataTypes.createDecimalType(18, 0)));
        }

        private static Object function(PythonUDF udf, Object given) {
            if (given instanceof PythonFunction) {
                return given;
            }
            PythonFunction old = (PythonFunction) udf.func();
            return new SimplePythonFunction((byte[]) given, old.envVars(), old.pythonIncludes(), old.pythonExec(), old.pythonVer(),
                old.broadcastVars(), old.accumulator());
        }
    }

    /** Collects the slots of expressions. */
    public static final class Found extends AbstractPartialFunction {
        private final Set found;

        public Found(Set found) {
            this.found = found;
        }

        public boolean isDefinedAt(Object x) {
            return x instanceof ValueSlot || x instanceof PythonUDF;
        }

        public Object applyOrElse(Object x, Function1 otherwise) {
            if (x instanceof ValueSlot) {
                found.add("value " + ((ValueSlot) x).number);
            } else if (x instanceof PythonUDF) {
                found.add("task " + ((PythonUDF) x).name());
            }
            return x;
        }
    }
}
