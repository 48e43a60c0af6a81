"""Many clients of a real server at once, each with its own connection: errors, times and memory."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def campaign(_: Path, clients: int, seconds: float, pause: float = 1.0) -> dict[str, Any]:
    """Each client asks for curves and drawings in turn, and pauses as a person does."""
    command = [sys.executable, "-m", "metavrf", "serve", "--port", "0", "--no-open"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r":(\d+)/", process.stderr.readline())
        assert found
        port = int(found[1])
        asyncio.run(_all(port, clients, min(5.0, seconds), pause, []))  # warmed up
        before, times = _resident(process.pid), list[tuple[int, float]]()
        asyncio.run(_all(port, clients, seconds, pause, times))
        after = _resident(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        if process.stderr is not None:
            process.stderr.close()
    took = sorted(time for _, time in times)
    return {
        "clients": clients,
        "seconds": seconds,
        "pause": pause,
        "requests": len(times),
        "errors": sum(status != 200 for status, _ in times),
        "median_seconds": round(took[len(took) // 2], 4),
        "p99_seconds": round(took[int(0.99 * (len(took) - 1))], 4),
        "memory_mb_before": before,
        "memory_mb_after": after,
        "load_average": round(os.getloadavg()[0], 1),
    }


async def _all(port: int, clients: int, seconds: float, pause: float, times: list[tuple[int, float]]) -> None:
    end = time.monotonic() + seconds
    await asyncio.gather(*(_client(port, number, end, pause, times) for number in range(clients)))


async def _client(port: int, number: int, end: float, pause: float, times: list[tuple[int, float]]) -> None:
    draw = random.Random(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(draw.uniform(0, pause))
    blank = [[0] * 28 for _ in range(28)]
    tasks: dict[str, str] = {}
    supports: dict[str, Any] = {
        "curve": {"kind": "curve", "points": [[-1, 0.5], [0, 1], [2, -1]]},
        "drawing": {
            "kind": "drawing",
            "classes": [{"name": name, "pictures": [_scribble(blank, draw)]} for name in "ab"],
        },
    }
    try:
        while time.monotonic() < end:
            kind = draw.choice(("curve", "drawing"))
            if kind not in tasks:
                status, body, took = await _post(reader, writer, "/api/fit", supports[kind])
                tasks[kind] = body.get("task", "")
            else:
                query = (
                    {"x": [n / 10 for n in range(50)]} if kind == "curve" else {"pictures": [_scribble(blank, draw)]}
                )
                status, _, took = await _post(
                    reader, writer, "/api/predict", {"kind": kind, "task": tasks[kind]} | query
                )
            times.append((status, took))
            await asyncio.sleep(draw.uniform(0.5, 1.5) * pause)
    finally:
        writer.close()


async def _post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, value: Any
) -> tuple[int, dict[str, Any], float]:
    body = json.dumps(value).encode()
    lines = ["Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    head = f"POST {path} HTTP/1.1\r\n" + "\r\n".join(lines)
    began = time.monotonic()
    writer.write(head.encode() + body)
    await writer.drain()
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"content-length: (\d+)", answer, re.IGNORECASE)
    assert length
    said = await reader.readexactly(int(length[1]))
    return int(answer.split()[1]), json.loads(said), time.monotonic() - began


def _scribble(blank: list[list[int]], draw: random.Random) -> list[list[int]]:
    row = draw.randrange(28)
    return [[255] * 28 if number == row else line for number, line in enumerate(blank)]


def _resident(process: int) -> float:
    """Megabytes that a process holds."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0
