package STREAMING;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.nio.file.CopyOption;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;

/**
 * Writes the files of Spark's progress log. For each file in a local folder, Hadoop starts processes (chmod, readlink) and writes a file of
 * checksums: a quarter of the CPU time of a small batch. The log lasts for one run and is made from a checkpoint, so a plain file will do.
 * Files appear by renaming, as Hadoop's do. Files elsewhere are left to Hadoop.
 */
public final class PlainLog extends FileContextBasedCheckpointFileManager {
    public PlainLog(Path path, Configuration settings) {
        super(path, settings);
    }

    public FSDataOutputStream createTempFile(Path path) throws IOException {
        if (!isLocal()) {
            return super.createTempFile(path);
        }
        return new FSDataOutputStream(new BufferedOutputStream(Files.newOutputStream(local(path))), null);
    }

    public void renameTempFile(Path from, Path to, boolean overwrite) throws IOException {
        if (!isLocal()) {
            super.renameTempFile(from, to, overwrite);
            return;
        }
        CopyOption[] how = overwrite ? new CopyOption[] {StandardCopyOption.REPLACE_EXISTING} : new CopyOption[0];
        try {
            Files.move(local(from), local(to), how);
        } catch (FileAlreadyExistsException error) {
            throw new org.apache.hadoop.fs.FileAlreadyExistsException(to + " exists");
        }
    }

    private static java.nio.file.Path local(Path path) {
        return Paths.get(path.toUri().getPath());
    }
}
