"""Gauss-Newton steps for planning: find actions in a box that lead from one state to another in exactly K steps.

With the actions a = (a_1 … a_K) and the miss e(a) = embed(state after a) - embed(target), the step minimises
|e + J d|² over the change d of the actions, with each action kept inside its box. J is chained from the Jacobians of
single steps:

    J_t = E A_K … A_{t+1} B_t        A = ∂ next / ∂ state,  B = ∂ next / ∂ action,  E = ∂ embed / ∂ state

There are mostly more actions than numbers to hit, so the system to solve has the size of the embedding however long the
plan is. The box is part of the problem, not an afterthought: clipping a free solution throws away just the correction
that the other actions could have made.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bats.model.ensemble import Predictor, states_along

HOLD_ALL = 2
"""turns of the inner solver that hold every entry at once that would leave its box"""
MORE_TURNS = 8
"""turns beyond the number of entries that go one by one"""
LEAST_DAMPING = 1e-6
"""relative to the size of J; a rejected step raises the damping ten times, an accepted one lowers it"""
LEAN = 0.5
"""how far the last step goes from the mean miss to that of the judging members: all the way, others take their place"""

POLISH = 3
"""further steps towards the judging members where a plan has fewer actions than numbers to hit: it must miss, and what
is left depends on whom it aims at"""

Embed = Callable[[Float[Array, "... D"]], Float[Array, "... m"]]


@eqx.filter_jit
def gauss_newton(
    dynamics: Predictor,
    embed: Embed,
    source: Float[Array, "B D"],
    target: Float[Array, "B D"],
    actions: Float[Array, "B K A"],
    length: Int[Array, "B"],
    box: tuple[Float[Array, "A"], Float[Array, "A"]],
    *,
    quantile: float,
    iterations: Int[Array, ""],
) -> tuple[Float[Array, "B K A"], Float[Array, "B"]]:
    """The actions after some steps from the given ones, never worse than those by the quantile that will judge them.

    Also the distance that the last step promised to first order: where it is small and the plan is not, the step
    stalled on a bend that straight lines do not show; where it is large, the box does not reach the target. The miss to
    be cancelled is the mean of all members'; the last step leans towards those whose distances make the quantile. The
    Jacobian, which costs most, is the best member's alone.
    """
    best_member = jax.tree.map(lambda stacked: stacked[:1], dynamics.networks)
    best = eqx.tree_at(lambda whole: whole.networks, dynamics, best_member)
    aim = embed(target)
    low, high = box

    def look(actions: Float[Array, "B K A"]) -> tuple[Array, Array, Array, Array]:
        """The best member's states, the mean miss, the judging members' miss, and the quantile of the distances."""
        states = states_along(dynamics, source, actions, length)
        miss = embed(states[:, :, -1]) - aim
        distances = jnp.linalg.norm(miss, axis=-1)
        judging = _judging_share(distances, quantile)[..., None]
        return states[0], miss.mean(axis=0), (judging * miss).sum(axis=0), jnp.quantile(distances, quantile, axis=0)

    def improve(turn: Int[Array, ""], carried: tuple[Array, ...]) -> tuple[Array, ...]:
        actions, states, mean_miss, judging_miss, distance, damping = carried[:6]
        lean = jnp.where(turn >= iterations - 1, LEAN, 0.0)
        miss = mean_miss + lean * (judging_miss - mean_miss)
        slope = _chained_jacobian(best, embed, source, states, actions, length)
        floor, ceiling = ((edge - actions).reshape(len(actions), -1) for edge in (low, high))
        step = boxed_step(slope, miss, floor, ceiling, damping)
        tried = jnp.clip(actions + step.reshape(actions.shape), low, high)
        found = (tried, *look(tried))
        better = found[4] < distance  # false for NaN
        kept = [
            jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
            for new, old in zip(found, carried[:5], strict=True)
        ]
        damping = jnp.where(better, jnp.maximum(damping / 10, LEAST_DAMPING), damping * 10)
        return (*kept, damping, jnp.linalg.norm(miss + jnp.einsum("bmn,bn->bm", slope, step), axis=-1))

    start = jnp.clip(actions, low, high)
    *seen, distance = look(start)
    distance = jnp.where(jnp.isfinite(distance), distance, jnp.inf)
    first = (start, *seen, distance, jnp.full(len(source), LEAST_DAMPING), jnp.full(len(source), jnp.inf))
    must_miss = actions[0].size < aim.shape[-1]
    turns = jnp.where(iterations > 0, iterations + POLISH, 0) if must_miss else iterations
    found = jax.lax.fori_loop(0, turns, improve, first)
    return found[0], found[-1]


def _judging_share(distances: Float[Array, "M B"], quantile: float) -> Float[Array, "M B"]:
    """Shares of the members in the quantile of their distances, as weights of squares with the same slope.

    The quantile is a sum of one or two of the distances in order; the slope of |e| is that of e² / 2|e|.
    """
    rank = jnp.argsort(jnp.argsort(distances, axis=0), axis=0)
    part = jnp.maximum(1 - jnp.abs(rank - quantile * (len(distances) - 1)), 0)
    weight = part / jnp.maximum(distances, 1e-12)
    return weight / weight.sum(axis=0)


def step_jacobians(
    model: Predictor, states: Float[Array, "N D"], actions: Float[Array, "N A"]
) -> tuple[Float[Array, "N D D"], Float[Array, "N D A"]]:
    """How the next state of a model of one member depends on state and action, by reverse mode."""

    def following(state: Float[Array, "D"], action: Float[Array, "A"]) -> Float[Array, "D"]:
        return state + model.change(state[None, None], action[None, None])[0][0, 0]

    return jax.vmap(jax.jacrev(following, argnums=(0, 1)))(states, actions)


def _chained_jacobian(
    model: Predictor,
    embed: Embed,
    source: Float[Array, "B D"],
    states: Float[Array, "B K D"],
    actions: Float[Array, "B K A"],
    length: Int[Array, "B"],
) -> Float[Array, "B m K*A"]:
    """How the embedding of the last state depends on every action; not at all on those beyond a plan's length."""
    count, longest, width = actions.shape
    before = jnp.concatenate([source[:, None], states[:, :-1]], axis=1)
    by_state, by_action = step_jacobians(model, before.reshape(-1, before.shape[-1]), actions.reshape(-1, width))
    acting = (jnp.arange(longest) < length[:, None])[:, :, None, None]
    by_state = by_state.reshape(count, longest, *by_state.shape[1:])
    by_state = jnp.where(acting, by_state, jnp.eye(by_state.shape[-1]))
    by_action = jnp.where(acting, by_action.reshape(count, longest, *by_action.shape[1:]), 0.0)
    outer = jax.vmap(jax.jacrev(embed))(states[:, -1])
    columns = []
    for step in reversed(range(longest)):
        columns.append(outer @ by_action[:, step])
        outer = outer @ by_state[:, step]
    return jnp.concatenate(columns[::-1], axis=-1)


def boxed_step(
    slope: Float[Array, "B m n"],
    error: Float[Array, "B m"],
    floor: Float[Array, "B n"],
    ceiling: Float[Array, "B n"],
    damping: Float[Array, "B"],
) -> Float[Array, "B n"]:
    """The d between floor and ceiling that minimises |error + slope d|² + ridge |d|², by the active-set method.

    Entries are loose or held by an edge. All loose ones are solved for together, and d moves there until the first of
    them meets its edge, which then holds it. Where nothing is in the way, the held entry that would gain most by
    leaving its edge is let go. Each turn can only improve, and a few more turns than entries find the minimum. To
    save turns, the first few hold all entries at once that would leave the box.
    """
    entries = slope.shape[2]
    size = jnp.einsum("bmn,bmn->b", slope, slope) / error.shape[1]
    ridge = (damping * size + 1e-12)[:, None]

    def hold_all(_: Int[Array, ""], carried: tuple[Array, Array]) -> tuple[Array, Array]:
        step, loose = carried
        free = _solved(slope, error, step, loose, ridge)
        return jnp.clip(free, floor, ceiling), loose & (free > floor) & (free < ceiling)

    def turn(_: Int[Array, ""], carried: tuple[Array, Array]) -> tuple[Array, Array]:
        step, loose = carried
        move = _solved(slope, error, step, loose, ridge) - step
        room = jnp.where(move > 0, ceiling - step, floor - step)
        reach = jnp.where(loose & (move != 0), room / move, jnp.inf)
        blocked = reach.min(axis=1) < 1.0
        nearest = jax.nn.one_hot(reach.argmin(axis=1), entries, dtype=bool)
        share = jnp.where(blocked, reach.min(axis=1), 1.0)[:, None]
        moved = jnp.where(nearest & blocked[:, None], step + room, step + share * move)
        moved = jnp.clip(moved, floor, ceiling)

        left = error + jnp.einsum("bmn,bn->bm", slope, moved)
        uphill = jnp.einsum("bmn,bm->bn", slope, left) + ridge * moved
        inward = jnp.where(moved <= floor, -uphill, uphill)
        wants = jnp.where(~loose & (inward > 0), inward, 0.0)
        let_go = jax.nn.one_hot(wants.argmax(axis=1), entries, dtype=bool) & (wants.max(axis=1) > 0)[:, None]
        return moved, jnp.where(blocked[:, None], loose & ~nearest, loose | let_go)

    start = (jnp.zeros_like(floor), jnp.ones_like(floor, dtype=bool))
    started = jax.lax.fori_loop(0, HOLD_ALL, hold_all, start)
    return jax.lax.fori_loop(0, entries + MORE_TURNS, turn, started)[0]


def _solved(
    slope: Float[Array, "B m n"],
    error: Float[Array, "B m"],
    step: Float[Array, "B n"],
    loose: Bool[Array, "B n"],
    ridge: Float[Array, "B 1"],
) -> Float[Array, "B n"]:
    """The step with its loose entries at the minimum, box or not, through a system of the size of m."""
    columns = slope * loose[:, None, :]
    small = columns @ jnp.swapaxes(columns, 1, 2) + ridge[:, :, None] * jnp.eye(error.shape[1])
    left = error + jnp.einsum("bmn,bn->bm", slope, jnp.where(loose, 0.0, step))
    free = -jnp.einsum("bmn,bm->bn", columns, jnp.linalg.solve(small, left[..., None])[..., 0])
    return jnp.where(loose, free, step)
