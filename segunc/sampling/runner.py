"""One network of a sampler, and one branch over it: what runs its draws, and what is known about it."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import Tensor, nn

from segunc.bayes.branches import IDENTITY, Branch
from segunc.bayes.draws import AffineDraws, FoldedDraws
from segunc.bayes.noise import NoiseSource
from segunc.sampling.engine import Engine, Precision
from segunc.sampling.prefix import Prefix
from segunc.sampling.self_check import SelfCheck, check
from segunc.sampling.upsampling import Upsampling


class NetworkRunner:
    """The engine of one network, and in which ways draws may run on it.

    Args:
        network: in eval mode.
        precision, messages, compiled: see :class:`Engine`.

    Attributes:
        found: by the self-check, None before it and for a network without draws.
        reached: for each site whether a drawn forward came through it.
        unreached: names of the others.
    """

    def __init__(self, network: nn.Module, precision: Precision, messages: list[str], compiled: bool) -> None:
        self.engine = Engine(network, precision, messages, compiled=compiled)
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


class BranchRunner:
    """The draws of one branch.

    Args:
        branch: which network, posterior and transform.
        draws: of the whole that belong to it.
        runner: of its network.

    Attributes:
        folded: the network's own affine (row 0) and then the draws; None for a branch without noise.
    """

    def __init__(self, branch: Branch, draws: range, runner: NetworkRunner) -> None:
        self.branch, self.draws, self.runner = branch, draws, runner
        self.folded: FoldedDraws | None = None

    def draw(self, noise: NoiseSource, scope: str | None, images: Tensor | None = None) -> None:
        """Make the draws.

        Args:
            noise: of the whole.
            scope: narrower than the posterior's own, or None.
            images: the first frames, untransformed, for the self-check of the network; it comes before other draws.
        """
        if not self.branch.stochastic:
            return
        layout = self.runner.engine.require_layout()
        drawn = self.branch.posterior.affine(
            layout, self.branch.numbers(self.draws), self.branch.noise(noise), scope
        ).after(layout.weight, layout.bias)
        if images is not None:
            self.runner.check(images, drawn)
        self.folded = self.runner.engine.fold(drawn, share=self.runner.shares)

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
        base = None if runner.folded is None else runner.folded.part(0, 1).without_element_noise()
        self.ending = network.engine.ending(self.images, base, network.reached)
        self._base = base

    def base_logits(self) -> tuple[Tensor, Upsampling]:
        """Logits ``[n, C, h, w]`` of the network's own affine, and their upsampling to the transformed frames."""
        return self.runner.runner.engine.logits(self.images, self._base, self.ending, self.prefix)

    def logits(self, first: int, last: int) -> tuple[Tensor, Upsampling]:
        """The same for the branch's draws first..last-1, ``[(last - first) * n, C, h, w]``, draw-major."""
        folded = self.runner.folded
        assert folded is not None
        # Row 0 is the base network.
        part = folded.part(first + 1, last + 1)
        return self.runner.runner.engine.logits(self.images, part, self.ending, self.prefix)

    @property
    def only_one_at_a_time(self) -> bool:
        """Whether the prefix serves one draw at a time only."""
        found = self.runner.runner.found
        return self.prefix is not None and found is not None and not found.shared_passed
