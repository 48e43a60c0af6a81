"""Tables of rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tabled.figures import Result, Rows, result, select, table


@table("rows-regression")
def rows_regression() -> Rows:
    """Mean ranks and means of small tables."""
    figures = ("R²", "nll", "crps")
    return _ranked(result("rows")["regression"], "regression", figures)


@table("rows-classes")
def rows_classes() -> Rows:
    """Mean ranks, nll and accuracy of small tables."""
    return _ranked(result("rows")["classes"], "classes", ("nll", "accuracy"))


@table("rows-pmlbmini")
def rows_pmlbmini() -> Rows:
    """The same of PMLBmini, with the CPU seconds of a fold."""
    found = result("rows")["pmlbmini"]
    header, *lines = _ranked(found, "PMLBmini", ("nll", "AUC"))
    seconds = [[f"{select(found['summary'], method=line[0])['seconds']:.2f}"] for line in lines]
    return [[*header, "CPU s per fold"], *([*line, *more] for line, more in zip(lines, seconds, strict=True))]


@table("rows-curves")
def rows_curves() -> Rows:
    """Error of curves of ten points."""
    tables = result("rows-curves")["curves"]["tables"]
    methods = list(next(iter(tables.values())))
    lines = [[method, *(f"{table[method][0]:.3f}" for table in tables.values())] for method in methods]
    return [["error, share of the variance", *(name.removesuffix(", 10") for name in tables)], *lines]


@table("rows-faint")
def rows_faint() -> Rows:
    """R² where it is near that of the mean, and the means of all tables: as kernels were added."""
    stages = [result(name) for name in ("rows", "rows-ours", "rows-screened")]
    real = [stage["regression"] for stage in stages]
    lines = []
    for name, of in real[-1]["tables"].items():
        if name.startswith(("linnerud", "birthwt")):
            found = [part["tables"][name]["MetaVRFRegressor()"][0] for part in real]
            lines.append([name, *(f"{r2:.3f}" for r2 in (*found, of["the mean"][0]))])
    mean = select(real[-1]["summary"], method="the mean")
    for figure in ("R²", "nll", "crps"):
        found = [select(part["summary"], method="MetaVRFRegressor()")[figure] for part in real]
        name = f"all tables, {figure.replace('crps', 'CRPS')}"
        lines.append([name, *(f"{value:.3f}" for value in (*found, mean[figure]))])
    for figure in ("nll", "accuracy"):
        found = [select(stage["classes"]["summary"], method="MetaVRFClassifier()")[figure] for stage in stages[::2]]
        lines.append([f"classes, {figure}", f"{found[0]:.3f}", "", f"{found[1]:.3f}", ""])
    return [["R² of table, rows", "older kernels", "with faint ones", "now, screened", "the mean"], *lines]


@table("rows-time")
def rows_time() -> Rows:
    """Milliseconds of fit and predict."""
    found = result("rows-screened")["milliseconds"]
    return [["fit and predict, 50 rows × 10 columns", "ms"], *([name, f"{ms:.1f}"] for name, ms in found.items())]


@table("rows-features")
def rows_features() -> Rows:
    """Accuracy and nll of ours, and the best of the others in each, on features of a network."""
    lines = []
    for name, found in result("rows-features")["figures"].items():
        ours = found["MetaVRFClassifier()"]
        others = {method: of for method, of in found.items() if method != "MetaVRFClassifier()"}
        best = max(others, key=lambda method: others[method]["accuracy"])
        surest = min(others, key=lambda method: others[method]["nll"])
        right = [f"{100 * of['accuracy']:.1f}" for of in (ours, others[best])]
        nll = [f"{of['nll']:.3f}" for of in (ours, others[surest])]
        gap = others[best]["less ours"]
        more = f"{-100 * gap['accuracy']:+.1f} ± {196 * gap['standard errors'][0]:.1f}"
        ratio = f"{ours['nll'] / others[surest]['nll']:.2f}"
        lines.append([name, right[0], f"{right[1]} ({best})", more, nll[0], f"{nll[1]} ({surest})", ratio])
    header = ["features of, shots", "accuracy (%)", "best of the others", "difference"]
    return [[*header, "nll", "best of the others", "ratio"], *lines]


@table("curves")
def curves() -> Rows:
    """Errors of new groups from some of their points, and how much larger those of the others are than ours."""
    lines = []
    ours, chosen = "metavrf", "metavrf, logarithm or not by validation"
    for name, found in result("curves")["sets"].items():
        for shot in ("3", "5"):
            for method, of in found[shot].items():
                cells = [name, shot, method, f"{of['rmse']:.3g}", f"{of['nll']:.2f}"]
                for reference in (ours, chosen):
                    gap = of[f"less {reference}"].get("rmse")
                    ends = "" if gap is None else f" ({gap['ci95'][0]:+.2g} to {gap['ci95'][1]:+.2g})"
                    cells.append("" if gap is None else f"{gap['mean']:+.2g}{ends}")
                lines.append(cells)
    head = ["curves", "points", "method", "error", "nll", "error less that of metavrf", "… by validation"]
    return [head, *lines]


@table("rows-adaptivity")
def rows_adaptivity() -> Rows:
    """Nll with a task's own weights of kernels, the mean ones and another task's."""
    lines = []
    for found in result("rows-adaptivity")["adaptivity"]:
        kind = "regression" if found["classes"] is None else f"{found['classes']} classes"
        nll = [f"{found['nll'][weights]:.3f}" for weights in ("own", "mean", "other")]
        lines.append([f"{found['rows']} × {found['columns']}", kind, *nll, f"{found['mean - own']['p_value']:.1g}"])
    return [["rows × columns", "", "own", "mean", "another's", "p, own against mean"], *lines]


@table("suggest")
def suggest() -> Rows:
    """Labels to reach what random ones reach."""
    lines = []
    for name, found in result("suggest")["tables"].items():
        cells = [name.replace("_", " "), f"{found['level']:.3f}"]
        for method in found["methods"].values():
            cells.append("never" if method["needed"] is None else f"{method['needed']:.0f}")
        saved = found["methods"]["suggest"]["saved"]
        lines.append([*cells, "" if saved is None else f"{100 * saved:.0f} %"])
    return [["table", "accuracy, or R²", "random", "smallest margin", "`suggest`", "saved"], *lines]


def _ranked(part: Result, title: str, figures: Sequence[str]) -> Rows:
    """Mean ranks, then means; the best rank by the first figure comes first, what is not ranked last."""
    lines = sorted(part["summary"], key=lambda line: float(line.get(f"rank by {figures[0]}", 99)))
    ranks, names = [f"rank by {figure}" for figure in figures], ["CRPS" if name == "crps" else name for name in figures]
    header = [title, *(f"rank by {name}" for name in names), *names]
    return [
        header,
        *(
            [
                line["method"],
                *(f"{line[rank]:.2f}" if rank in line else "" for rank in ranks),
                *(f"{line[figure]:.3f}" for figure in figures),
            ]
            for line in lines
        ),
    ]
