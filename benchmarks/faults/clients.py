"""Many clients of a real server at once, each with its own address and connection: errors, times and memory.

A client that is slow would hide a server that is slow, or be taken for one. So the process of the clients is watched
too: its share of a core, and how late its clock rings.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from faults.server import serving

TICK = 0.01  # seconds between two looks at the clock
LOOK = 1.0  # between two looks at the server's memory
WARM = 15.0  # seconds before anything is counted
SCRIBBLES = 28


@dataclass
class Log:
    """What was seen of one sitting."""

    answers: list[tuple[int, float]] = field(default_factory=list)
    """Status and seconds of each request."""
    late: list[float] = field(default_factory=list)
    """By how many seconds the clients' clock rang late."""
    memory: list[tuple[float, float]] = field(default_factory=list)
    """Time, and megabytes of the server."""
    took: float = 0.0
    own_cpu: float = 0.0
    server_cpu: float = 0.0


def campaign(_: Path, clients: int, seconds: float, pause: float = 1.0) -> dict[str, Any]:
    """Each client asks for curves and drawings in turn, and pauses as a person does; 0 for no pause."""
    with serving() as (port, server):
        log = asyncio.run(_sitting(port, server, clients, seconds, pause))
    times = np.array([each for _, each in log.answers])
    at, held = np.array(log.memory).T
    return {
        "clients": clients,
        "seconds": seconds,
        "pause": pause,
        "requests": len(times),
        "requests_per_second": round(len(times) / log.took, 1),
        "errors": sum(status != 200 for status, _ in log.answers),
        "median_seconds": round(float(np.median(times)), 4),
        "p99_seconds": round(float(np.quantile(times, 0.99)), 4),
        "most_seconds": round(float(times.max()), 4),
        "client_share_of_a_core": round(log.own_cpu / log.took, 3),
        "client_late_p99_seconds": round(float(np.quantile(log.late, 0.99)), 4),
        "server_share_of_a_core": round(log.server_cpu / log.took, 3),
        "memory_mb_first": round(float(held[0]), 1),
        "memory_mb_last": round(float(held[-1]), 1),
        "memory_mb_most": round(float(held.max()), 1),
        "memory_mb_per_minute": round(60 * float(np.polyfit(at - at[0], held, 1)[0]), 2) if len(held) > 2 else None,
        "load_average": round(os.getloadavg()[0], 1),
    }


async def _sitting(port: int, server: int, clients: int, seconds: float, pause: float) -> Log:
    """All clients at once; what they do in the first seconds, until each has its tasks, is not counted."""
    log, warm = Log(), min(WARM, seconds)
    end = time.monotonic() + warm + seconds
    asking = [asyncio.create_task(_client(port, number, end, pause, log)) for number in range(clients)]
    await asyncio.sleep(warm)
    log.answers.clear()
    began, own, theirs = time.monotonic(), time.process_time(), _cpu_seconds(server)
    watching = [asyncio.create_task(_clock(log)), asyncio.create_task(_memory(server, log))]
    try:
        await asyncio.gather(*asking)
    finally:
        for watch in watching:
            watch.cancel()
    log.took = time.monotonic() - began
    log.own_cpu, log.server_cpu = time.process_time() - own, _cpu_seconds(server) - theirs
    return log


async def _clock(log: Log) -> None:
    while True:
        due = time.monotonic() + TICK
        await asyncio.sleep(TICK)
        log.late.append(time.monotonic() - due)


async def _memory(server: int, log: Log) -> None:
    while True:
        log.memory.append((time.monotonic(), _resident(server)))
        await asyncio.sleep(LOOK)


async def _client(port: int, number: int, end: float, pause: float, log: Log) -> None:
    draw = random.Random(number)
    own = (f"127.0.1.{number + 1}", 0) if sys.platform == "linux" else None  # the queue is fair to addresses
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=own)
    await asyncio.sleep(draw.uniform(0, pause))
    points = {"kind": "curve", "points": [[-1, 0.5], [0, 1], [2, -1]]}
    classes = [{"name": name, "pictures": [_scribble(draw.randrange(SCRIBBLES))]} for name in "ab"]
    supports = {"curve": _request("fit", points), "drawing": _request("fit", {"kind": "drawing", "classes": classes})}
    queries: dict[str, list[bytes]] = {}
    try:
        while time.monotonic() < end:
            kind = draw.choice(("curve", "drawing"))
            if kind in queries:
                status, _, took = await _post(reader, writer, draw.choice(queries[kind]))
            else:
                status, body, took = await _post(reader, writer, supports[kind])
                if status == 200:
                    queries[kind] = _queries(kind, str(json.loads(body)["task"]))
            log.answers.append((status, took))
            await asyncio.sleep(draw.uniform(0.5, 1.5) * pause)
    finally:
        writer.close()


def _queries(kind: str, task: str) -> list[bytes]:
    """Requests on a task, made before they are sent: a client should not compute while it waits."""
    asked: Callable[[int], dict[str, Any]] = {
        "curve": lambda shift: {"x": [(n + shift / SCRIBBLES) / 10 for n in range(50)]},
        "drawing": lambda row: {"pictures": [_scribble(row)]},
    }[kind]
    return [_request("predict", {"kind": kind, "task": task} | asked(number)) for number in range(SCRIBBLES)]


def _request(path: str, value: Any) -> bytes:
    body = json.dumps(value).encode()
    lines = ["Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    return f"POST /api/{path} HTTP/1.1\r\n".encode() + "\r\n".join(lines).encode() + body


async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, bytes, float]:
    began = time.monotonic()
    writer.write(request)
    await writer.drain()
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"content-length: (\d+)", answer, re.IGNORECASE)
    assert length
    body = await reader.readexactly(int(length[1]))
    return int(answer.split()[1]), body, time.monotonic() - began


def _scribble(row: int) -> list[list[int]]:
    return [[255 if at == row else 0] * 28 for at in range(28)]


def _resident(process: int) -> float:
    """Megabytes that a process holds."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _cpu_seconds(process: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
