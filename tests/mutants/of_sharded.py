"""Hand-written faults of what only jobs of several processes run: DeepSpeed over several slots. `--slow` runs them."""

from __future__ import annotations

# file → (name, text that stands there once, text instead)
SHARDED: dict[str, list[tuple[str, str, str]]] = {
    "learner/backends.py": [
        ("gradients averaged over ranks", "self._engine.backward(loss * self._ranks.world)", "self._engine.backward(loss)"),
        ("a stale buffer not zeroed", "self._engine.optimizer.grad_partitions_flat_buffer.zero_()", "pass"),
        ("a shard's norm for the slot's", "if self._cut else number", "if False else number"),
        ("every sharded step at the peak rate", 'group["lr"] = self.rate(slot, numbers[slot])', 'group["lr"] = self._slots[slot].lr'),
        ("every micro-batch ends the update", "set_gradient_accumulation_boundary(last)", "set_gradient_accumulation_boundary(True)"),
        ("sharded moments kept where weights are put back", "self._optimizer.state.clear()", "pass"),
        ("sharded masters kept where weights are put back", "self._engine.optimizer.refresh_fp32_params()", "pass"),
        ("sharded moments and masters not resumed", "load_module_strict=False)", "load_module_strict=False, load_optimizer_states=False)"),
        ("ranks call a head as often as each wants", "max(self._ranks.gather(self.team.chunks(rows))) if self._zero == 3 else None", "None"),
        ("an overflow told as no gradient", "self._optimizer.norms.get(slot, math.nan)", "self._optimizer.norms.get(slot, 0.0)"),
    ],
    "learner/optimizer.py": [
        ("a group that is not active moves", 'if group["active"] and group["params"]', 'if group["params"]'),
        ("another slot's bound of the norm", 'factor = group["max_grad_norm"] /', 'factor = self.param_groups[-1]["max_grad_norm"] /'),
        ("slots' norms mixed", '[p.grad for p in group["params"] if', '[p.grad for other in self.param_groups for p in other["params"] if'),
        ("a group whose gradient is no number applied", "if not math.isfinite(norm):", "if False:"),
        ("groups not clipped", "if factor < 1:", "if False:"),
    ],
}  # fmt: skip
