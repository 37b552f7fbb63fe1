"""Hand-written faults of what an update computes: credit, denominators, losses, the cut of a batch, weights and optimizers."""

from __future__ import annotations

# The faults that a run survives without a word, and that cost it its result.
TWELVE = (
    "KL in the reward times 0", "KL loss term dropped", "importance correction dropped", "trainer ignores temperature",
    "reference ignores temperature", "no whitening", "critic target = advantage", "value clip gone", "dev evaluated at temperature 1",
    "test evaluated at temperature 1", "advantages not divided by σ", "observation tokens trained",
)  # fmt: skip

# file → (name, text that stands there once, text instead)
TERMS: dict[str, list[tuple[str, str, str]]] = {
    "credit.py": [
        ("advantages not divided by σ", "(reward - rewards.mean()) / (deviation + eps)", "reward - rewards.mean()"),
        ("one baseline for everything", "groups[unit.baseline].append", 'groups[""].append'),
        ("units' order in a chain reversed", "key=lambda u: u.order", "key=lambda u: -u.order"),
        ("reward earned by the first token", "rewards[-1][-1] += unit.reward", "rewards[-1][0] += unit.reward"),
        ("every unit a chain of its own", "chains[unit.chain or unit.id]", "chains[unit.id]"),
        ("penalty added to the reward", "earned -= penalties[action]", "earned += penalties[action]"),
        ("whitening per action", "(array - flat.mean())", "(array - array.mean())"),
    ],
    "reduction.py": [
        ("a sum divides too", 'if fold.how == "mean":', "if True:"),
        ("denominators of tokens count units", 'if item == "token" else 1', "if False else 1"),
        ("levels that do not nest are taken", "if home.setdefault(part, key) != key:", "if False:"),
    ],
    "losses.py": [
        ("an infinite log-ratio hidden by its bound", ".where(difference.isfinite(), torch.nan)", ""),
        ("value clip gone", "bounded = old + (predicted - old).clamp(-clip, clip)", "bounded = predicted"),
        ("clip bounds swapped", "ratio.clamp(1 - clip[0], 1 + clip[1])", "ratio.clamp(1 - clip[1], 1 + clip[0])"),
        ("clipped where it loses", "gained = torch.minimum(plain, bounded)", "gained = torch.maximum(plain, bounded)"),
        ("dual clip on good advantages", "low = (advantage < 0) & (gained < floor)", "low = gained < floor"),
        ("KL of the reference to the policy", "ratio = log_ratio(reference, logprob)", "ratio = log_ratio(logprob, reference)"),
        ("importance not truncated", "return torch.exp(log_ratios).clamp(max=cap)", "return torch.exp(log_ratios)"),
        ("a unit's ratio is the sum of its tokens'", "return total / count.clamp(min=1)", "return total"),
    ],
    "learner/terms.py": [
        ("KL loss term dropped", 'o.kl.coefficient * (column("kl_weight") * kl)', '0.0 * (column("kl_weight") * kl)'),
        ("importance correction dropped", "weight * losses.truncated_importance(drift, term.importance_cap) * found.loss", "weight * found.loss"),
        ("importance of the new policy", 'losses.log_ratio(column("old_logprob"), column("sampler_logprob"))', 'losses.log_ratio(logprob.detach(), column("sampler_logprob"))'),
        ("ratio per token where a unit has one", 'if term.ratio == "unit":', "if False:"),
        ("imitation at coefficient 1", "loss - o.imitation.coefficient * (weight", "loss - (weight"),
        ("importance dropped of units cut apart", "weight = of_unit(batch.policy_weight) * correction", "weight = of_unit(batch.policy_weight)"),
        ("units cut apart counted by row", "slopes.slope[tokens] = ((weight * found.slope).numpy() / count)[unit]", "slopes.slope[tokens] = (weight * found.slope).numpy()[unit]"),
        ("critic learns its old values", 'column("value"), column("target"), o.critic.clip', 'column("value"), column("value"), o.critic.clip'),
        ("critic's loss over policy's weights", '(column("value_weight") * loss).sum()', '(column("policy_weight") * loss).sum()'),
    ],
    "learner/batch.py": [
        (
            "observation tokens trained",
            "                actions.append(turn.id)\n            parts.append(columns)",
            "                for name in _KEYS if parts else ():\n                    parts[-1][name][1:] = columns[name][0]\n"
            "                actions.append(turn.id)\n            parts.append(columns)",
        ),
        ("an example's observation tokens trained", "columns[name][trained] = key", "columns[name][1:] = key"),
        ("the sampler's log-probs lost", "np.array(turn.logprobs, dtype=np.float64)", "np.zeros(len(turn.ids))"),
        ("rows without a group are one group", "group=e.group or f\"example-{n}\"", "group=e.group"),
        ("an action's numbers in another order", "pieces = np.split(getattr(self, name)[order], bounds)", "pieces = np.split(getattr(self, name)[order[::-1]], bounds)"),
        ("micro-batches padded on the left", "ids[i, : end - start] = batch.ids[start:end]", "ids[i, start - end :] = batch.ids[start:end]"),
    ],
    "learner/cut.py": [
        ("minibatch denominators of the whole batch", "_term_weights(objective, acted, shown, lengths)", "_term_weights(objective, units, examples, lengths)"),
        ("an example's weight ignored", "weight[unit.id] * unit.reward for unit", "weight[unit.id] for unit"),
        ("units cut apart that fit", "_bundles(sets) if together else", "_bundles(sets) if False else"),
        ("minibatches not dealt in the order drawn", "shuffled = [groups[rank] for rank in order]", "shuffled = groups"),
        ("only the first minibatch holds rows", "set(shuffled[i::count]) for i in range(count)", "set(shuffled if i == 0 else ()) for i in range(count)"),
        ("KL's denominators are the policy's", "item_weights(units, lengths, o.kl.over)", "item_weights(units, lengths, o.policy.over)"),
        ("micro-batches over their limit", "(len(result[-1]) + len(bundle)) <= max_tokens", "len(result[-1]) <= max_tokens"),
        ("bundles forget what they merged", "owner[row] = merged", "owner[row] = list(rows)"),
    ],
    "learner/step.py": [
        ("the gate weighs what older weights sampled", "Mismatch.of(batch, stale)\n", "Mismatch.of(batch)\n"),
        ("log-probs that are no numbers learned from", "if reason := unsound(found.batch):", "if reason := \"\":"),
        ("KL in the reward times 0", "o.kl.coefficient * (old[action]", "0.0 * (old[action]"),
        ("no whitening", "whiten(advantage) if o.whiten else advantage", "advantage"),
        ("critic target = advantage", "{action: returns for action, (_, returns)", "{action: returns for action, (returns, _)"),
        ("weights computed from useful units only", "learner.cut(o, threads, useful, units, lengths", "learner.cut(o, threads, useful, useful, lengths"),
        ("units under an anchor left out", "if anchored or any(", "if any("),
        ("the gate is not asked", "if gate is not None and not (", "if False and not ("),
        ("the gate does not look at the tail", " and found.tail <= TAIL_FACTOR * gate", ""),
        ("the gate looks one way", "np.abs(np.expm1(", "(np.expm1("),
        ("units of every objective in each", "[unit for unit in units if unit.objective == objective.name]", "list(units)"),
    ],
    "learner/optimizer.py": [
        ("a gradient that is no number applied", "if math.isfinite(norm):\n                for group", "if True:\n                for group"),
        ("gradients kept after a step", "part.zero_grad(set_to_none=True)", "pass"),
        ("moments kept where weights are put back", "part.state.clear()", "pass"),
        ("masters kept where weights are put back", "master.copy_(parameter)", "pass"),
        ("the model never sees its masters", "parameter.copy_(master)", "pass"),
        ("every step at the peak rate", "peak * share_of_peak(self._config, number, self._updates)", "peak"),
        ("masters not saved", 'master.copy_(kept)', "pass"),
    ],
    "learner/backends.py": [
        ("a slot without rows steps anyway", "for slot, number in numbers.items():", "for slot, number in {**dict.fromkeys(self.optimizers, 0), **numbers}.items():"),
        ("gradients not summed over ranks", "self._ranks.sum_gradients(self.optimizers[slot].parameters)", "pass"),
        ("optimizers remember weights that are gone", "            optimizer.reset()", "            pass"),
        ("a critic left out where weights are put back", "if missing := trained_weights(self.team).keys() - weights.keys():", "if missing := ():"),
        ("every slot resumes from one optimizer", "optimizer.load_state_dict(states[slot])", "optimizer.load_state_dict(next(iter(states.values())))"),
        ("gradients of a refused slot kept", "self.optimizers[slot].clear()", "pass"),
        ("moments that are no numbers saved", "        require_sound(states, self._ranks)\n", ""),
        ("frozen weights are published too", "for name, tensor in module.state_dict().items() if name not in frozen", "for name, tensor in module.state_dict().items()"),
    ],
    "weights/team.py": [
        ("adapter not activated", "activate(self.base, wanted)", "pass"),
        ("frozen slot = trained slot", "if needs_frozen:", "if False:"),
        ("an unknown slot is the last one", "slot = slot if slot in self.place else FROZEN", "slot = slot if slot in self.place else next(reversed(self.place))"),
        ("a value is of the state after its token", "hidden[rows.row, rows.column - 1]", "hidden[rows.row, rows.column]"),
        ("a log-prob is of the token after", "token_logits(model, rows.row, rows.column - 1,", "token_logits(model, rows.row, rows.column,"),
        ("log-probs at temperature 1", ".float() / temperature", ".float()"),
        ("a critic's head anew in a resumed stage", "if saved is not None:\n            head.load_state_dict", "if False:\n            head.load_state_dict"),
        ("the base trained beside its adapters", "        parameter.requires_grad_(False)", "        pass"),
        ("the start before the checkpoint (adapters)", "for root in (saved, start) if root is not None and is_adapter(", "for root in (start, saved) if root is not None and is_adapter("),
        ("the start before the checkpoint (whole)", "for root in (saved, start) if root is not None and (place :=", "for root in (start, saved) if root is not None and (place :="),
        ("the base's own adapter forgotten", "team._built_in = BASE", "pass"),
        ("weights that are no numbers saved", 'require_finite({**inner, **head}, f"slot {slot}")', "pass"),
        ("a critic's head not read back", "            if slot in self.heads:\n                found |=", "            if False:\n                found |="),
    ],
}  # fmt: skip
