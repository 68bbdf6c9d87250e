"""kvstowd as a process of its own, for tests in Python."""

import re
import subprocess


class Daemon:
    """Starts kvstowd on free ports; ends it with the `with` block."""

    def __init__(self, program, *flags):
        command = [program, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        log = []
        for line in self.process.stderr:
            log.append(line)
            found = re.search(r"listening grpc=(\S+) http=(\S+)", line)
            if found:
                self.address, self.http = found[1], f"http://{found[2]}"
                return
        raise AssertionError("kvstowd did not start:\n" + "".join(log))

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()
