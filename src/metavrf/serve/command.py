"""The command ``metavrf serve``."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tyro.conf import UseAppendAction

from metavrf.commands.plugins import Plugins
from metavrf.errors import UserError

if TYPE_CHECKING:
    from metavrf.serve.app import Served

CURVE, BESIDE = "sine", ("sine-rff",)  # the shipped models that are looked for


@dataclass
class Serve(Plugins):
    """Open a page to draw characters and curves on; the same server has an HTTP interface: see docs/page.md."""

    host: str = "127.0.0.1"
    """Address to listen at; only this machine reaches the default."""
    port: int = 8000
    """Port to listen at; 0 for any that is free."""
    draw_model: str = "omniglot"
    """Model that classifies drawings: a shipped one, or a run on square grey pictures."""
    curve_model: str = ""
    """Model that fits curves: a run on functions; the shipped one unless given."""
    curve_beside: UseAppendAction[list[str]] = field(default_factory=list)
    """Run whose curve is shown beside it, for example of plain random features; may be given again."""
    allow_host: UseAppendAction[list[str]] = field(default_factory=list)
    """Name under which the server may be asked, besides addresses and localhost; may be given again."""
    open: bool = True
    """Open the page in a browser."""

    def run(self) -> None:
        """Load the models, listen, serve until interrupted."""
        try:
            import uvicorn

            from metavrf.serve.app import create_app
            from metavrf.serve.protocol import configured
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.partition(".")[0] == "metavrf":
                raise
            raise UserError("the page needs the extra 'serve': pip install 'metavrf[serve]'") from error
        import torch

        with listen(self.host, self.port) as listener:
            torch.set_num_threads(1)  # for single drawings: more would only wait for each other
            app = create_app(self.served(), self.allow_host)
            address = f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{listener.getsockname()[1]}/"
            print(f"metavrf: the page is at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
            if not is_local(self.host):
                word = "everybody who reaches this machine can use the page: it has no password and no encryption"
                print(f"metavrf: {word}", file=sys.stderr, flush=True)
            if self.open:
                open_browser(address)
            uvicorn.Server(configured(app)).run(sockets=[listener])

    def served(self) -> Served:
        """The models, warmed up: the first request waits no longer than others."""
        self.load_plugins()
        from metavrf.serve.app import Served
        from metavrf.serve.models import Curves, CurveTask, Drawings, shipped

        if self.curve_beside and not (self.curve_model or shipped(CURVE)):
            raise UserError("give --curve-model too: there is no shipped curve model to put --curve-beside beside")
        drawings = Drawings(self.draw_model)
        blank = [[0] * drawings.size] * drawings.size
        drawings.predict(drawings.fit({"a": [blank], "b": [blank]}), [blank])
        curves = None
        if self.curve_model or shipped(CURVE):
            beside = self.curve_beside or ([] if self.curve_model else [name for name in BESIDE if shipped(name)])
            curves = Curves(self.curve_model or CURVE, beside)
            curves.predict(CurveTask([0.0], [0.0]), [0.0])
        return Served(drawings, curves)


def is_local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; one sentence where it cannot."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, for asyncio switches Nagle's delay (40 ms an answer) off only where it reads so.
    listener = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        return listener
    except OverflowError:
        listener.close()
        raise UserError(f"{port=} is no port: give one from 0 to 65535") from None
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen at port {port} of {host} ({error.strerror}): choose another --port") from error


def open_browser(address: str) -> None:
    """Show the page, where there is a screen to show it on."""
    import webbrowser

    if sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)
