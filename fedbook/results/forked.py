"""Kernels that start at once: a process that has imported what chapters import, and forks for each of them.

A fork has run no chapter's code, so it is as fresh as a new interpreter, three seconds sooner.  Jupyter starts
`python forked.py ADDRESS -f CONNECTION_FILE`, which asks the process at the address for a fork and lives as long as the
fork does; the fork ends if it is killed.
"""

import json
import os
import signal
import socket
import sys
import threading

IMPORTS = (
    "numpy", "pandas", "scipy.stats", "torch", "matplotlib.pyplot", "matplotlib_inline.backend_inline",
    "ipykernel.kernelapp", "fedcore.probes", "fedbook.pages", "fedbook.show", "fedbook.pictures.plots",
)  # fmt: skip


def serve(address: str) -> None:
    """Fork for each request at the address; prints a line when it is ready."""
    for name in IMPORTS:
        __import__(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for who has started this process, and ends it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while True:
            link, _ = server.accept()
            if os.fork() == 0:
                server.close()
                become_kernel(link)
            link.close()


def become_kernel(link: socket.socket) -> None:
    """Run the kernel that is asked for, in the folder and environment of who asks; end when who asks does."""
    asked = json.loads(link.makefile().readline())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[1:] = asked["arguments"]
    threading.Thread(target=lambda: link.recv(1) or os._exit(1), daemon=True).start()
    from ipykernel.kernelapp import launch_new_instance

    try:
        launch_new_instance()
    finally:
        os._exit(0)


def ask(address: str, arguments: list[str]) -> None:
    """Ask for a kernel, and return at its end; an interrupt, which Jupyter sends before a shutdown, is not needed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        asked = {"folder": os.getcwd(), "environment": dict(os.environ), "arguments": arguments}
        link.sendall(json.dumps(asked).encode() + b"\n")
        link.recv(1)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "serve" else ask(sys.argv[1], sys.argv[2:])
