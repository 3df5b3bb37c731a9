import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and a data node in one process, until its standard input ends. Arguments: a folder. */
public class MiniHdfs {
  public static void main(String[] arguments) throws Exception {
    Configuration settings = new Configuration();
    settings.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
    settings.setInt("dfs.replication", 1);
    settings.set("dfs.namenode.fs-limits.min-block-size", "1024");
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings)
        .numDataNodes(1)
        .format(!Files.exists(Paths.get(arguments[0], "name-0-1")))
        .build();
    cluster.waitActive();
    System.out.println("READY " + cluster.getFileSystem().getUri());
    System.out.flush();
    while (System.in.read() >= 0) {}
    cluster.shutdown();
    System.exit(0);
  }
}
