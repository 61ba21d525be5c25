"""Latency series and engine logs that tests put together: spikes and lines at chosen times."""

EPOCH = 1_770_681_600.0  # 2026-02-10 00:00:00 UTC


def series(spikes, base=0.03, spike=0.8, n=2200, t0=0.0, form="t_s,itl_ms", jitter=0.05):
    """CSV text: values around `base` with a value `spike` from each time of `spikes` on."""
    out, t, left = [form], 0.0, sorted(spikes)
    for i in range(n):
        value = base * (1 + jitter * ((i * 7) % 11 - 5) / 5)
        if left and t >= left[0]:
            left.pop(0)
            value = spike
        t += value
        cells = {"t_s": f"{t0 + t:.4f}", "step": str(i), "itl_ms": f"{value * 1e3:.3f}", "step_ms": f"{value * 1e3:.3f}",
                 "start_s": f"{t0 + t - value:.4f}"}  # fmt: skip
        out.append(",".join(cells[c] for c in form.split(",")))
    return "\n".join(out) + "\n"


def relative(t, message, level="INFO"):
    return f"{level} [{t:+10.3f}s] [a.py:1] {message}\n"


def moves(times, seconds=0.8, line=relative, mode=""):
    """Begin and end lines of rearrangements."""
    return "".join(
        line(t, f"Rearranging experts{mode}...") + line(t + seconds, f"Rearranged experts{mode} in {seconds} seconds.")
        for t in times
    )


def compiles(times, line=relative):
    return "".join(line(t, "DeepGEMM JIT code generation <g>: M=7, N=5, K=1. Please wait.") for t in times)


def dumps(times, seconds=0.8, line=relative):
    return "".join(line(t + seconds, "memory snapshot written entries=5000 include_traces=True") for t in times)


def ready(t=-5.0, line=relative):
    return line(t, "Application startup complete.")


def countdown(*values, worker="", moved_after=()):
    """EPLB lines with the given countdowns; a completion line follows the indices in `moved_after`."""
    text = ""
    for i, value in enumerate(values):
        head = f"({worker} pid=1) " if worker else ""
        text += head + relative(
            12.0 * i,
            f"EPLB step: {i} for model M: avg_tokens=9.00, max_tokens=10, balancedness=0.9000, "
            f"steps until the next rearrangement: {value}",
        )
        if i in moved_after:
            text += head + relative(12.0 * i + 1, "Rearranged experts in 0.5 seconds (async).")
    return text


def balance(values, start=0.0, every=5.0):
    """SGLang's balancedness lines."""
    return "".join(
        relative(start + every * i, f"[Expert Balancedness] forward_pass_id={i} current_pass_balancedness={v:.3f}")
        for i, v in enumerate(values)
    )
