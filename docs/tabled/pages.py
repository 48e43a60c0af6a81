"""Tables of reliability and of cost."""

from __future__ import annotations

from tabled.figures import Result, Rows, number, result, table


@table("faults")
def faults() -> Rows:
    """What the campaign against faults found; parts that were not run are left out."""
    found, rows = result("faults"), [["part", "tried", "went wrong"]]
    if part := found.get("kills"):
        wrong = f"{part['lost']} lost, {part['different']} different"
        rows.append(["kills around writes", f"{part['kills']:,}", wrong])
    if part := found.get("mutations"):
        wrong = f"{part['different']} unnoticed, {part['traceback']} tracebacks"
        rows.append(["changed files", f"{part['mutations']:,}", wrong])
    if part := found.get("lines"):
        rows.append(["odd command lines", f"{part['lines']:,}", f"{part['wrong']} without a sentence"])
    if part := found.get("interface"):
        rows.append(["requests by Schemathesis", f"{part['cases']:,}", f"{part['failures']} failures"])
    if part := found.get("clients"):
        times = f"median {part['median_seconds']:.2f} s, 99 % within {part['p99_seconds']:.2f} s"
        asked = f"{part['clients']} clients for {part['seconds']:.0f} s"
        grown = part["memory_mb_last"] - part["memory_mb_first"]
        wrong = f"{part['errors']} errors; {grown:+.0f} MB of {part['memory_mb_first']:.0f}"
        rows.append([asked, f"{part['requests']:,} requests; {times}", wrong])
    return rows


@table("faults-kinds")
def faults_kinds() -> Rows:
    """What became of changed files, by kind."""
    outcomes = {"refused": "refused", "said": "told, mended", "same": "no difference", "different": "unnoticed"}
    kinds = result("faults")["mutations"]["by_kind"]
    lines = [[kind, *(f"{counts.get(name, 0):,}" for name in outcomes)] for kind, counts in kinds.items()]
    return [["kind", *outcomes.values()], *lines]


@table("scaling")
def scaling() -> Rows:
    """How costs grow along each axis: from the first to the last point, and the fitted power."""
    heads = ["what grows", "all else", "step (ms)", "power", "adapt (ms)", "power", "step (MB)", "power"]

    def along(one: Result, name: str) -> list[str]:
        first, *_, last = one["points"]
        if name not in first:
            return ["", ""]
        power = one["fits"][name]["power"]
        flat = power is None or last[name] < 2 * first[name]  # too little to tell a power from
        ends = [f"{cost:,.0f}" if cost >= 1000 else number(cost) for cost in (first[name], last[name])]
        return [" to ".join(ends), "flat" if flat else number(power)]

    lines = []
    for one in result("scaling")["axes"]:
        first, *_, last = one["points"]
        grows = f"{one['unit']}, {first['value']} to {last['value']:,}"
        costs = [cell for name in ("step_ms", "adapt_ms", "step_mb") for cell in along(one, name)]
        lines.append([grows, one["what"], *costs])
    return [heads, *lines]


@table("scaling-budget")
def scaling_budget() -> Rows:
    """What the paper's trainings take: measured on a CPU, worked out for GPUs."""
    heads = ["training", "steps", "tasks per step", "GFLOP per step", "operations per step", "CPU, one thread (h)"]
    lines = [
        [
            one["task"],
            f"{one['steps']:,}",
            str(one["tasks_per_step"]),
            number(one["flops"] / 1e9),
            str(one["launches"]),
            *(number(one[name], 2) for name in ("cpu_hours", "gpu_hours", "eight_gpus_hours", "eight_runs_hours_each")),
        ]
        for one in result("scaling")["budgets"]
    ]
    return [[*heads, "one GPU (h)", "one run on eight (h)", "a run, eight at once (h)"], *lines]


@table("scaling-assumed")
def scaling_assumed() -> Rows:
    """What is assumed of a GPU."""
    found = result("scaling")["assumed"]
    return [
        ["assumed", ""],
        ["GPU", found["gpu"]],
        ["peak, 32-bit floats without tensor cores", f"{found['peak_flops'] / 1e12:g} TFLOP/s"],
        ["share of the peak that is reached", f"{100 * found['reached_share']:g} %"],
        ["to send one operation", f"{1e6 * found['seconds_per_launch']:g} µs"],
        ["to average gradients over eight", f"{1e3 * found['seconds_to_average_gradients']:g} ms"],
    ]
