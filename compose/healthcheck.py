"""Asks a program's operators' pages, in its own container, whether it is well: exit 0 or 1.

healthcheck.py [PATH]    /healthz (the loop runs) or /readyz (it does its work)
"""

import socket
import sys

TIMEOUT_S = 4.0
PORT = 9622


def status_of(path: str) -> str:
    """The status line of the answer. Raises OSError."""
    with socket.create_connection(("127.0.0.1", PORT), timeout=TIMEOUT_S) as link:
        link.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        answer = link.makefile("rb").read()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0] + b" " + body[:200]
    return status.decode("utf-8", "replace").strip()


def main() -> int:
    path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
    try:
        status = status_of(path)
    except OSError as error:
        status = f"no answer: {error}"
    sys.stdout.write(status + "\n")
    return 0 if " 200 " in status else 1


if __name__ == "__main__":
    sys.exit(main())
