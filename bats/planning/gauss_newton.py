"""Gauss-Newton planning: find actions within bounds that lead from one state to another in exactly K steps.

With the actions a = (a_1 … a_K) and the end error e(a) = embed(state after a) - embed(target), a step minimises
|e + J d|² over the change d of the actions, with every action kept within its bounds. J is chained from the Jacobians
of single steps:

    J_t = E A_K … A_{t+1} B_t        A = ∂ next / ∂ state,  B = ∂ next / ∂ action,  E = ∂ embed / ∂ state

There are mostly more actions than numbers to hit, so the linear system has the size of the embedding, however long the
plan is. The bounds are part of the problem: clipping a free solution would discard just the correction that the other
actions could have made.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bats.arrays import Metric
from bats.model.ensemble import Dynamics, unroll_states
from bats.planning.context import Problems, Simulator

ITERATIONS = 3
POLISH = 3
"""further steps where a plan has fewer actions than numbers to hit: it cannot hit all, and what remains depends on
which members it aims for"""
LEAN = 0.5
"""weight of the quantile members in the last step; with 1.0 other members would become the worst"""
MIN_DAMPING = 1e-6
"""relative to the size of J; a rejected step raises the damping ten times, an accepted one lowers it"""
FIX_ALL = 2
"""turns of the inner solver that fix every action at once that would leave its bounds"""
EXTRA_TURNS = 8
"""turns beyond the number of actions that fix or release one action each"""


Jacobian = Float[Array, "B m n"]
"""of the m numbers of an end error, by the n numbers of a plan's actions"""
Errors = Float[Array, "B m"]
Entries = Float[Array, "B n"]
Damping = Float[Array, "B"]


@eqx.filter_jit
def gauss_newton(simulator: Simulator, problems: Problems, *, quantile: float) -> Float[Array, "B K A"]:
    """Improved actions, never worse than the given ones by the quantile of the members' end errors.

    A step cancels the mean end error of all members; the last steps lean towards the members that make the quantile.
    The Jacobian, which costs most, is the best member's alone.
    """
    dynamics, metric, low, high = simulator.dynamics, simulator.metric, simulator.low, simulator.high
    first_member = jax.tree.map(lambda stacked: stacked[:1], dynamics.networks)
    best_member = eqx.tree_at(lambda whole: whole.networks, dynamics, first_member)
    goal = metric.embed(problems.target)

    def evaluate(actions: Float[Array, "B K A"]) -> tuple[Array, Array, Array, Array]:
        """The best member's states, the mean error, the error of the quantile members, and the quantile distance."""
        states = unroll_states(dynamics, problems.source, actions, problems.length)
        error = metric.embed(states[:, :, -1]) - goal
        distances = jnp.linalg.norm(error, axis=-1)
        weight = _quantile_weights(distances, quantile)[..., None]
        return states[0], error.mean(axis=0), (weight * error).sum(axis=0), jnp.quantile(distances, quantile, axis=0)

    def improve(turn: Int[Array, ""], carried: tuple[Array, ...]) -> tuple[Array, ...]:
        actions, states, mean_error, quantile_error, distance, damping = carried
        lean = jnp.where(turn >= ITERATIONS - 1, LEAN, 0.0)
        error = mean_error + lean * (quantile_error - mean_error)
        jacobian = _chained_jacobian(best_member, metric, replace(problems, actions=actions), states)
        lower, upper = ((bound - actions).reshape(len(actions), -1) for bound in (low, high))
        step = bounded_step(jacobian, error, lower, upper, damping)
        tried = jnp.clip(actions + step.reshape(actions.shape), low, high)
        evaluated = (tried, *evaluate(tried))
        better = evaluated[4] < distance  # false for NaN
        kept = [
            jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
            for new, old in zip(evaluated, carried[:5], strict=True)
        ]
        return (*kept, jnp.where(better, jnp.maximum(damping / 10, MIN_DAMPING), damping * 10))

    start = jnp.clip(problems.actions, low, high)
    *evaluated, distance = evaluate(start)
    distance = jnp.where(jnp.isfinite(distance), distance, jnp.inf)
    first = (start, *evaluated, distance, jnp.full(len(start), MIN_DAMPING))
    overdetermined = start[0].size < goal.shape[-1]
    turns = ITERATIONS + POLISH if overdetermined else ITERATIONS
    return jax.lax.fori_loop(0, turns, improve, first)[0]


def _quantile_weights(distances: Float[Array, "M B"], quantile: float) -> Float[Array, "M B"]:
    """Weights of the members in the quantile of their distances, for errors whose squares are summed.

    The quantile is a sum of one or two of the ordered distances; the gradient of |e| is that of e² / 2|e|.
    """
    rank = jnp.argsort(jnp.argsort(distances, axis=0), axis=0)
    part = jnp.maximum(1 - jnp.abs(rank - quantile * (len(distances) - 1)), 0)
    weight = part / jnp.maximum(distances, 1e-12)
    return weight / weight.sum(axis=0)


def step_jacobians(
    model: Dynamics, states: Float[Array, "N D"], actions: Float[Array, "N A"]
) -> tuple[Float[Array, "N D D"], Float[Array, "N D A"]]:
    """How the next state of a model of one member depends on state and action, by reverse mode."""

    def next_state(state: Float[Array, "D"], action: Float[Array, "A"]) -> Float[Array, "D"]:
        return state + model.delta(state[None, None], action[None, None])[0][0, 0]

    return jax.vmap(jax.jacrev(next_state, argnums=(0, 1)))(states, actions)


def _chained_jacobian(model: Dynamics, metric: Metric, plans: Problems, states: Float[Array, "B K D"]) -> Jacobian:
    """How the embedding of the last state depends on every action; 0 for actions beyond a plan's length."""
    count, longest, width = plans.actions.shape
    before, actions = jnp.concatenate([plans.source[:, None], states[:, :-1]], axis=1), plans.actions
    by_state, by_action = step_jacobians(model, before.reshape(-1, before.shape[-1]), actions.reshape(-1, width))
    acting = (jnp.arange(longest) < plans.length[:, None])[:, :, None, None]
    by_state = by_state.reshape(count, longest, *by_state.shape[1:])
    by_state = jnp.where(acting, by_state, jnp.eye(by_state.shape[-1]))
    by_action = jnp.where(acting, by_action.reshape(count, longest, *by_action.shape[1:]), 0.0)
    outer = jax.vmap(jax.jacrev(metric.embed))(states[:, -1])
    columns = []
    for step in reversed(range(longest)):
        columns.append(outer @ by_action[:, step])
        outer = outer @ by_state[:, step]
    return jnp.concatenate(columns[::-1], axis=-1)


def bounded_step(jacobian: Jacobian, error: Errors, lower: Entries, upper: Entries, damping: Damping) -> Entries:
    """The d between the bounds that minimises |error + J d|² + ridge |d|², by the active-set method.

    Entries are free or fixed at a bound. All free ones are solved for together, and d moves there until the first of
    them hits its bound, which then fixes it. Where nothing is in the way, the fixed entry that would gain most by
    leaving its bound is released. Each turn can only improve, and a few more turns than entries find the minimum. To
    save turns, the first ones fix all entries at once that would leave their bounds.
    """
    entries = jacobian.shape[2]
    size = jnp.einsum("bmn,bmn->b", jacobian, jacobian) / error.shape[1]
    ridge = (damping * size + 1e-12)[:, None]

    def solve_free(step: Entries, free: Bool[Array, "B n"]) -> Entries:
        """The step with its free entries at the unbounded minimum, through a system of the size of m."""
        columns = jacobian * free[:, None, :]
        small = columns @ jnp.swapaxes(columns, 1, 2) + ridge[:, :, None] * jnp.eye(error.shape[1])
        remaining = error + jnp.einsum("bmn,bn->bm", jacobian, jnp.where(free, 0.0, step))
        solved = -jnp.einsum("bmn,bm->bn", columns, jnp.linalg.solve(small, remaining[..., None])[..., 0])
        return jnp.where(free, solved, step)

    def fix_all(_: Int[Array, ""], carried: tuple[Array, Array]) -> tuple[Array, Array]:
        step, free = carried
        solved = solve_free(step, free)
        return jnp.clip(solved, lower, upper), free & (solved > lower) & (solved < upper)

    def fix_or_release_one(_: Int[Array, ""], carried: tuple[Array, Array]) -> tuple[Array, Array]:
        step, free = carried
        move = solve_free(step, free) - step
        room = jnp.where(move > 0, upper - step, lower - step)
        reach = jnp.where(free & (move != 0), room / move, jnp.inf)
        blocked = reach.min(axis=1) < 1.0
        nearest = jax.nn.one_hot(reach.argmin(axis=1), entries, dtype=bool)
        share = jnp.where(blocked, reach.min(axis=1), 1.0)[:, None]
        moved = jnp.where(nearest & blocked[:, None], step + room, step + share * move)
        moved = jnp.clip(moved, lower, upper)

        remaining = error + jnp.einsum("bmn,bn->bm", jacobian, moved)
        gradient = jnp.einsum("bmn,bm->bn", jacobian, remaining) + ridge * moved
        inward = jnp.where(moved <= lower, -gradient, gradient)
        gain = jnp.where(~free & (inward > 0), inward, 0.0)
        released = jax.nn.one_hot(gain.argmax(axis=1), entries, dtype=bool) & (gain.max(axis=1) > 0)[:, None]
        return moved, jnp.where(blocked[:, None], free & ~nearest, free | released)

    start = (jnp.zeros_like(lower), jnp.ones_like(lower, dtype=bool))
    started = jax.lax.fori_loop(0, FIX_ALL, fix_all, start)
    return jax.lax.fori_loop(0, entries + EXTRA_TURNS, fix_or_release_one, started)[0]
