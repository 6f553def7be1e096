"""What stands in for ``python``: hand everything to the server, pass signals on, end as the program ends."""

# pathlib takes longer to load than all of this.
# ruff: noqa: PTH109, PTH110, PTH208
import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def forward(program, number):
    """Send a signal to the program, which may have ended."""
    try:
        os.kill(program, number)
    except ProcessLookupError:
        return


def main(path, arguments):
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    request = {"arguments": arguments, "cwd": os.getcwd(), "env": dict(os.environ), "files": files}
    text = json.dumps(request).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], files)
    connection.sendall(text)
    answers = connection.makefile("r")
    program = int(answers.readline())
    for number in FORWARDED:
        signal.signal(number, lambda number, _: forward(program, number))
    code = int(answers.readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main(sys.argv[1], sys.argv[2:])
