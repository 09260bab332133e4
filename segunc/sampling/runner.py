"""The draws of one branch (:mod:`segunc.affine.posterior`): made once for a run, and run over sets of frames."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout, FoldedDraws
from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource
from segunc.affine.posterior import IDENTITY, AnyPosterior, Branch, branches_of, draws_of
from segunc.core.device import full_float32
from segunc.sampling.ending import Upsampling
from segunc.sampling.engine import Engine, check, is_rounding, largest_difference, require_finite
from segunc.sampling.prefix import Prefix


class BranchRunner:
    """The draws of one branch, or of one member of a branch.

    Args:
        branch: which network, posterior and transform.
        draws: of the whole that belong to it.
        engine: of its network.
        apart: share what is common to these draws alone, not to them and the base network: members with an affine of
            their own before the first site that is drawn.
    """

    def __init__(self, branch: Branch, draws: range, engine: Engine, *, apart: bool = False) -> None:
        self.branch, self.draws, self.engine, self.apart = branch, draws, engine, apart
        self.folded: FoldedDraws | None = None  # the draws; None before :meth:`draw`, and for a branch without noise
        self.base: FoldedDraws | None = None  # the network's own affine as one draw, likewise
        self._drawn: tuple[NoiseSource, str | None] | None = None
        # For each shape of images that was checked, whether its draws have to run one at a time with nothing shared.
        self.alone: dict[tuple[int, ...], bool] = {}

    def draw(self, noise: NoiseSource, scope: str | None, images: Tensor | None = None) -> None:
        """Make the draws of the whole's noise, unless they are there. ``scope`` is narrower than the posterior's own,
        or None. ``images`` are the first frames, untransformed, for the self-check of the network, which comes before
        other draws."""
        if not self.branch.stochastic or self._drawn == (noise, scope):
            return
        engine = self.engine
        drawn = self._affine(noise, scope)
        whole = drawn.after(engine.layout.weight, engine.layout.bias)
        if images is not None and engine.self_check is None:
            engine.self_check = check(engine.network, images, whole)
        # Row 0 is the base network.
        folded = engine.fold(whole, share=engine.shares and not self.apart)
        self.base = folded.part(0, 1)
        self.folded = engine.fold(drawn, share=engine.shares) if self.apart else folded.part(1, len(folded))
        self._drawn = (noise, scope)  # where memory did not suffice, the next call draws again

    def _affine(self, noise: NoiseSource, scope: str | None) -> AffineDraws:
        branch = self.branch
        return branch.posterior.affine(self.engine.layout, branch.numbers(self.draws), branch.noise(noise), scope)

    def by_member(self, noise: NoiseSource, scope: str | None, images: Tensor) -> list[BranchRunner]:
        """Return a runner for each member if the draws of one have more in common than all draws and the base; else this one.

        Members differ from the base and from each other at every site, so that with a narrow scope nothing would be
        common to all draws, though each member's draws share all that lies before the scope.
        """
        engine = self.engine
        if self.folded is None or not engine.shares:
            return [self]
        members = self.branch.posterior.members
        runners = [BranchRunner(self.branch, self.draws[m::members], engine, apart=True) for m in range(members)]
        if any(len(runner.draws) < 2 for runner in runners):
            return [self]
        for runner in runners:
            runner.draw(noise, scope)
        sets = [runner.folded for runner in runners if runner.folded is not None]
        # A member of whose draws none differs, at a site or in a mask, would leave nothing to run.
        differ = all(s.dropout or not all(site.agree for site in s.sites) for s in sets)
        more = any(a.agree and not b.agree for s in sets for a, b in zip(s.sites, self.folded.sites, strict=True))
        if not (differ and more):
            return [self]
        # What a member shares reaches further into the network, where the first check saw nothing shared.
        self_check = check(engine.network, images, runners[0]._affine(noise, scope))
        if is_rounding(self_check.shared):
            return runners
        engine.messages.append(
            "what is common to a member's draws cannot be shared on this network; it is computed for every draw"
        )
        return [self]

    def untransformed(self) -> BranchRunner:
        """Return a runner of the same draws of the frame as it is."""
        other = copy.copy(self)
        other.branch = replace(self.branch, transform=IDENTITY)
        return other


class Pass:
    """One branch over one set of untransformed frames ``[n, 3, H, W]``; ``common`` is what other networks computed of these frames in
    the same transform."""

    def __init__(self, runner: BranchRunner, images: Tensor, common: Prefix | None = None) -> None:
        self.runner, self.engine = runner, runner.engine
        self.images = runner.branch.transform.apply(images)
        self.ending = self.engine.ending(self.images, runner.base, common)
        shape = tuple(self.images.shape)
        self.alone = runner.alone.get(shape, False) or shape in self.engine.branching
        shared = runner.folded is not None and not self.alone and self.engine.shares
        self.prefix = Prefix() if shared else common

    def base_logits(self) -> tuple[Tensor, Upsampling]:
        """Return logits ``[n, C, h, w]`` of the network's own affine, and their upsampling to the transformed frames."""
        prefix = None if self.runner.apart else self.prefix
        return self.engine.logits(self.images, self.runner.base, self.ending, prefix)

    def logits(self, first: int, last: int, compiled: bool = False) -> tuple[Tensor, Upsampling]:
        """Return the same for the branch's draws first..last-1, ``[(last - first) * n, C, h, w]``, draw-major."""
        assert self.runner.folded is not None
        draws, shape = self.runner.folded.part(first, last), tuple(self.images.shape)
        logits, upsampling = self.engine.logits(self.images, draws, self.ending, self.prefix, compiled)
        if shape in self.runner.alone or (len(draws) == 1 and self.prefix is None):
            return logits, upsampling
        difference = self._difference(logits, draws)
        self.runner.alone[shape] = not is_rounding(difference)
        if is_rounding(difference):
            return logits, upsampling
        self.alone, self.prefix = True, None
        size = f"{self.images.shape[-1]} x {self.images.shape[-2]}"
        self.engine.messages.append(
            f"self-check failed for frames of {size}: a draw in a batch differs from the same alone by {difference:.1e} of "
            "the largest logit; draws of frames of this size run one at a time"
        )
        parts = [self.logits(draw, draw + 1)[0] for draw in range(first, last)]
        return torch.cat(parts), upsampling

    def _difference(self, logits: Tensor, draws: FoldedDraws) -> float:
        """Return how far the last of some draws lies from the same draw in a pass of its own that shares nothing, relative to the
        largest logit. Networks that cut large frames into tiles, or order a batch by its size, keep the order of the draws
        at the small size of the first self-check only. In float32, because bfloat16 rounds as coarsely as draws may differ."""
        engine, ending = self.engine, self.ending
        if engine.dtype != torch.float32:
            engine, ending = Engine(engine.network, "float32"), None
            logits, _ = engine.logits(self.images, draws, ending, None if self.prefix is None else Prefix())
        expected, _ = engine.logits(self.images, draws.part(len(draws) - 1, len(draws)), ending)
        return largest_difference(logits[-len(expected) :], expected) / max(float(expected.abs().max()), 1e-12)


@torch.no_grad()
def draw_logits(
    network: nn.Module, posterior: AnyPosterior, images: Tensor, draws: int, seed: int = 0
) -> Iterator[Tensor]:
    """Yield logits ``[n, C, H, W]`` of draw 0, 1, ... of one batch of images, one plain pass a draw.

    The draws are those of :class:`segunc.sampling.Sampler` of the same arguments, in its default scheme. It folds them into sums; here
    the caller sees each. InputError for fewer draws than members, NotFiniteError for a draw with NaN or infinite logits.
    """
    branches = branches_of(network, posterior)
    count = draws_of(branches, posterior, draws)
    layouts = {id(b.network): AffineLayout(b.network) for b in branches if b.stochastic}
    noise = NoiseSource(seed, DEFAULT_SCHEME, count)
    size: tuple[int, int] | None = None
    for draw in range(count):
        branch = branches[draw % len(branches)]
        active: AbstractContextManager[object] = nullcontext()
        if branch.stochastic:
            layout = layouts[id(branch.network)]
            numbers = branch.numbers(range(draw, draw + 1))
            active = layout.active(branch.posterior.affine(layout, numbers, branch.noise(noise)))
        with active, full_float32():
            logits = branch.network(branch.transform.apply(images))
        if not branch.transform.identity:
            if size is None:
                grid = network(images[:1])
                size = (grid.shape[-2], grid.shape[-1])
            logits = branch.transform.undo(logits, size)
        require_finite(logits, "a draw gives", "check the model with segunc doctor")
        yield logits
