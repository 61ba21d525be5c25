"""A recorded engine in a process of its own, a tiny model of transformers, that does what it is told by line.

`Engine` starts one and talks to it. Run as a program it reads lines such as `step 3` and answers each with JSON.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Engine:
    """Its process; `tell("step", 3)` gives what it answers."""

    def __init__(self, rings, *words):
        env = {**os.environ, "MOEXRAY_RINGS": str(rings), "PYTHONPATH": f"{HERE.parent / 'src'}:{HERE}", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "live_engine.py"), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.tell("step", 1)

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        """Its input ends, and it without a farewell to its ring."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)


class Host:
    """The engine's side; each method is an order."""

    def __init__(self):
        import moexray
        from tiny_models import tiny, tokens

        self.moexray, self.model, self.ids = moexray, tiny("mixtral"), tokens()
        self.recording, self.router = moexray.attach(self.model), None
        self.choices = 2 * self.ids.numel()  # of a layer and forward: two experts a token

    def step(self, count="1"):
        """Forwards: the median of their CPU times, how often one waited, and what the router's guard counted."""
        import torch

        took, waits = [], resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(int(count)):
            began = time.thread_time_ns()
            with torch.inference_mode():
                self.model(self.ids, use_cache=False)
            took.append(time.thread_time_ns() - began)
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - waits
        figures = self.router.guard.figures() if self.router else None
        counts = (figures.calls - figures.fallbacks - figures.skipped, figures.fallbacks, figures.skipped) if figures else ()
        return {"cpu_ns": statistics.median(took), "waits": waits, "counts": counts, "choices": self.choices * len(took)}

    def spans(self, count="1"):
        """Forwards, each in a span of its own; their ids."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        tracer, ids = TracerProvider(shutdown_on_exit=False).get_tracer("requests"), []
        for _ in range(int(count)):
            with tracer.start_as_current_span("request") as span:
                self.step()
                context = span.get_span_context()
                ids.append((trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)))
        return ids

    def modules(self):
        """Whether OpenTelemetry was imported."""
        return any(name.partition(".")[0] == "opentelemetry" for name in sys.modules)

    def policy(self):
        """Another policy over the routers."""
        from moexray.runtime import router

        self.router = router.attach(self.model, "bias:rate=0.02")
        return self.router.attached

    def broken(self):
        """From now on the policy raises, more often than a guard has patience for."""
        self.router.guard.patience = 1 << 30
        for site in self.router._sites:
            site.policy.choose = None
        return True

    def off(self):
        """The remedy is switched off."""
        from moexray.runtime.guard import switch

        switch("router", on=False)
        return True

    def again(self):
        """Another recording, into another ring."""
        self.recording.detach()
        self.recording = self.moexray.attach(self.model)
        return self.recording.attached


if __name__ == "__main__":
    host = Host()
    for line in sys.stdin:
        order, *words = line.split()
        sys.stdout.write(json.dumps(getattr(host, order)(*words)) + "\n")
        sys.stdout.flush()
