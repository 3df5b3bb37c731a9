package org.apache.hadoop.fs;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.EnumSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * Plain files of this machine, at addresses with a scheme of their own: Spark's progress log. For each file of the scheme `file`, Hadoop
 * starts processes (chmod, readlink) and writes a file of checksums: a quarter of the CPU time of a small batch. The log lasts for one run
 * and is made from a checkpoint, so plain files will do. They appear by renaming, as Hadoop's do.
 */
public final class PlainFiles extends DelegateToFileSystem {
    public PlainFiles(URI uri, Configuration settings) throws IOException, URISyntaxException {
        super(uri, new OfThisMachine(), settings, uri.getScheme(), false);
    }

    public FSDataOutputStream createInternal(Path path, EnumSet flags, FsPermission permission, int bufferSize, short replication,
        long blockSize, Progressable progress, Options.ChecksumOpt checksum, boolean createParent) throws IOException {
        return new FSDataOutputStream(new BufferedOutputStream(Files.newOutputStream(local(path))), null);
    }

    public void renameInternal(Path from, Path to, boolean overwrite) throws IOException {
        try {
            if (overwrite) {
                Files.move(local(from), local(to), StandardCopyOption.REPLACE_EXISTING);
            } else {
                Files.move(local(from), local(to));
            }
        } catch (java.nio.file.FileAlreadyExistsException error) {
            throw new FileAlreadyExistsException(to + " exists");
        }
    }

    private static java.nio.file.Path local(Path path) {
        return Paths.get(path.toUri().getPath());
    }

    /** What Hadoop does with local files, without the processes. */
    public static final class OfThisMachine extends RawLocalFileSystem {
        private static final URI ADDRESS = URI.create("penstock-plain:///");

        public URI getUri() {
            return ADDRESS;
        }

        public FileStatus getFileLinkStatus(Path path) throws IOException {
            return getFileStatus(path);
        }

        public void setPermission(Path path, FsPermission permission) {
        }
    }
}
