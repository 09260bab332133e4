"""One network of a sampler, and one branch over it: what runs its draws, and what is known about it."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import Tensor, nn

from segunc.affine.branches import IDENTITY, Branch
from segunc.affine.draws import AffineDraws, FoldedDraws
from segunc.affine.noise import NoiseSource
from segunc.core.device import Precision
from segunc.sampling.ending import Upsampling
from segunc.sampling.engine import Engine
from segunc.sampling.prefix import Prefix
from segunc.sampling.self_check import SelfCheck, check


class NetworkRunner:
    """The engine of one network, and in which ways draws may run on it.

    Args:
        network: in eval mode.
        precision, messages: see :class:`Engine`.

    Attributes:
        found: by the self-check, None before it and for a network without draws.
        reached: for each site whether a drawn forward came through it.
        unreached: names of the others.
    """

    def __init__(self, network: nn.Module, precision: Precision, messages: list[str]) -> None:
        self.engine = Engine(network, precision, messages)
        self.found: SelfCheck | None = None
        self.reached: list[bool] | None = None
        self.unreached: tuple[str, ...] = ()

    @property
    def shares(self) -> bool:
        """Whether some way of sharing what is common to all draws passed."""
        return self.found is not None and (self.found.shared_passed or self.found.shared_one_passed)

    def share(self, chunk: int) -> bool:
        """Whether what is common to all draws may be shared by ``chunk`` draws at a time."""
        return self.found is not None and (self.found.shared_passed or (self.found.shared_one_passed and chunk == 1))

    def check(self, images: Tensor, draws: AffineDraws) -> None:
        """Find out in float32 how draws may run on this network, by the first frame that it sees."""
        if self.found is not None:
            return
        exact = Engine(self.engine.network, "float32")
        self.found = check(exact, images, draws)
        layout = exact.require_layout()
        self.reached = layout.reached()
        self.unreached = tuple(name for name, hit in zip(layout.names, self.reached, strict=True) if not hit)

    def shares_also(self, images: Tensor, draws: AffineDraws) -> bool:
        """Whether draws with more in common than those of :meth:`check` may share that too, as those may.

        What they share reaches further into the network, where the first check saw nothing shared.
        """
        found = check(Engine(self.engine.network, "float32"), images, draws)
        assert self.found is not None
        passed = found.shared_passed or (found.shared_one_passed and not self.found.shared_passed)
        if not passed:
            self.engine.messages.append(
                "what is common to a member's draws cannot be shared on this network; it is computed for every draw"
            )
        return passed


class BranchRunner:
    """The draws of one branch, or of one member of a branch.

    Args:
        branch: which network, posterior and transform.
        draws: of the whole that belong to it.
        runner: of its network.
        apart: share what is common to these draws alone, not to them and the base network: members with an affine of
            their own before the first site that is drawn.

    Attributes:
        folded: the draws; None for a branch without noise.
        base: the network's own affine as one draw, without noise; None for a branch without noise.
    """

    def __init__(self, branch: Branch, draws: range, runner: NetworkRunner, *, apart: bool = False) -> None:
        self.branch, self.draws, self.runner, self.apart = branch, draws, runner, apart
        self.folded: FoldedDraws | None = None
        self.base: FoldedDraws | None = None
        self._drawn: tuple[NoiseSource, str | None] | None = None

    def draw(self, noise: NoiseSource, scope: str | None, images: Tensor | None = None) -> None:
        """Make the draws, unless they are there.

        Args:
            noise: of the whole.
            scope: narrower than the posterior's own, or None.
            images: the first frames, untransformed, for the self-check of the network; it comes before other draws.
        """
        if not self.branch.stochastic or self._drawn == (noise, scope):
            return
        self._drawn = (noise, scope)
        engine = self.runner.engine
        layout = engine.require_layout()
        drawn = self._affine(noise, scope)
        whole = drawn.after(layout.weight, layout.bias)
        if images is not None:
            self.runner.check(images, whole)
        # Row 0 is the base network.
        folded = engine.fold(whole, share=self.runner.shares and not self.apart)
        self.base = folded.part(0, 1)
        self.folded = engine.fold(drawn, share=self.runner.shares) if self.apart else folded.part(1, len(folded))

    def _affine(self, noise: NoiseSource, scope: str | None) -> AffineDraws:
        layout = self.runner.engine.require_layout()
        return self.branch.posterior.affine(layout, self.branch.numbers(self.draws), self.branch.noise(noise), scope)

    def by_member(self, noise: NoiseSource, scope: str | None, images: Tensor) -> list[BranchRunner]:
        """A runner for each member if the draws of one have more in common than all draws and the base; else itself.

        Members differ from the base and from each other at every site, so that with a narrow scope nothing would be common
        to all draws, though each member's draws share all that lies before the scope.

        Args:
            noise, scope, images: as in :meth:`draw`.
        """
        if self.folded is None or not self.runner.shares:
            return [self]
        members = self.branch.posterior.members
        runners = [
            BranchRunner(self.branch, self.draws[member::members], self.runner, apart=True) for member in range(members)
        ]
        if any(len(runner.draws) < 2 for runner in runners):
            return [self]
        for runner in runners:
            runner.draw(noise, scope)
        more = any(
            own.agree and not all_.agree
            for runner in runners
            if runner.folded is not None
            for own, all_ in zip(runner.folded.sites, self.folded.sites, strict=True)
        )
        if not more or not all(runner.differ for runner in runners):
            return [self]
        return runners if self.runner.shares_also(images, runners[0]._affine(noise, scope)) else [self]

    @property
    def differ(self) -> bool:
        """Whether anything is drawn: some site at which the draws are not all the same, or a dropout layer."""
        assert self.folded is not None
        return bool(self.folded.dropout) or not all(site.agree for site in self.folded.sites)

    def untransformed(self) -> BranchRunner:
        """The same draws of the frame as it is."""
        other = copy.copy(self)
        other.branch = replace(self.branch, transform=IDENTITY)
        return other


class Pass:
    """One branch over one set of frames.

    Args:
        runner: of the branch.
        images: untransformed, ``[n, 3, H, W]``.
        chunk: draws that will run at a time, for which sharing is decided.
    """

    def __init__(self, runner: BranchRunner, images: Tensor, chunk: int) -> None:
        self.runner = runner
        self.images = runner.branch.transform.apply(images)
        network = runner.runner
        self.prefix = Prefix() if runner.folded is not None and network.share(chunk) else None
        self.ending = network.engine.ending(self.images, runner.base, network.reached)

    def base_logits(self) -> tuple[Tensor, Upsampling]:
        """Logits ``[n, C, h, w]`` of the network's own affine, and their upsampling to the transformed frames."""
        prefix = None if self.runner.apart else self.prefix
        return self.runner.runner.engine.logits(self.images, self.runner.base, self.ending, prefix)

    def logits(self, first: int, last: int, compiled: bool = False) -> tuple[Tensor, Upsampling]:
        """The same for the branch's draws first..last-1, ``[(last - first) * n, C, h, w]``, draw-major, compiled or not."""
        folded = self.runner.folded
        assert folded is not None
        return self.runner.runner.engine.logits(
            self.images, folded.part(first, last), self.ending, self.prefix, compiled
        )

    @property
    def only_one_at_a_time(self) -> bool:
        """Whether the prefix serves one draw at a time only."""
        found = self.runner.runner.found
        return self.prefix is not None and found is not None and not found.shared_passed
