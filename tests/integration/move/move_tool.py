# SPDX-License-Identifier: Apache-2.0
#
# What the tests of `quire session export|import` share: a server in a folder of its own, and the tool
# as a process. Needs the Python standard library alone.
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

SOURCE = os.environ["QUIRE_SOURCE"]
BINARY = os.environ["QUIRE_BINARY"]
SAMPLE = os.path.join(os.environ.get("QUIRE_DATA", os.path.join(SOURCE, "tests/data")), "smollm2_kv.safetensors")
TOOL = os.path.join(BINARY, "client/quire")
SLOW = 5 if os.environ.get("QUIRE_SANITIZE") else 1


class Server:
    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(prefix="quire-")
        self.target = f"unix:{self.folder}/socket"
        ready = os.path.join(self.folder, "ready")
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.process = subprocess.Popen(
            [os.path.join(BINARY, "server/quired"), "--listen", self.target, "--ready-file", ready, *flags],
            stdout=self.log, stderr=self.log)
        for _ in range(400 * SLOW):
            if os.path.exists(ready) or self.process.poll() is not None:
                break
            time.sleep(0.05)
        if not os.path.exists(ready):
            self.stop()
            raise SystemExit("quired did not start:\n" + self.text)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60 * SLOW)
        self.log.seek(0)
        self.text = self.log.read()
        self.log.close()
        shutil.rmtree(self.folder)
        return code


def words(server, *arguments):
    return [TOOL, *map(str, arguments), "--server", server.target]


def quire(server, *arguments, code=0, **more):
    """Run the tool to its end; its exit code must be `code`."""
    done = subprocess.run(words(server, *arguments), capture_output=True, timeout=600 * SLOW, **more)
    if done.returncode != code:
        raise AssertionError(f"quire {' '.join(map(str, arguments))}: {done.returncode}, not {code}\n"
                             f"{done.stdout[-2000:]!r}\n{done.stderr.decode()}")
    return done


def quire_json(server, *arguments, code=0, **more):
    return json.loads(quire(server, *arguments, "--json", code=code, **more).stdout)


def peak_rss_bytes(commands, stdout):
    """Run commands as one pipe; the peak resident size of each, and wall seconds. All must end with 0."""
    begun, processes, before = time.monotonic(), [], None
    for i, command in enumerate(commands):
        last = i + 1 == len(commands)
        processes.append(subprocess.Popen(command, stdin=before, stdout=stdout if last else subprocess.PIPE))
        if before is not None:
            before.close()
        before = processes[-1].stdout
    sizes = []
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise AssertionError(f"{process.args}: {process.returncode}")
        sizes.append(usage.ru_maxrss * 1024)
    return sizes, time.monotonic() - begun
