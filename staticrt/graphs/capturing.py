"""Captures a node: places the inputs, runs the function once under capture, and classifies its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt.errors import CaptureError
from staticrt.graphs.functions import Function
from staticrt.graphs.inputs import Copies, is_aligned, new_buffer, not_owning, overlap_pattern, storage_ptrs
from staticrt.graphs.liveness import PathOutput, differing, liveness
from staticrt.graphs.outputs import Kind, Source, alias_of_input, classify, like_fresh
from staticrt.graphs.protocol import GraphBackend, GraphPool
from staticrt.graphs.storage import Places, Writes, describe, digest, is_plain, rehome, storage_ref, with_bits
from staticrt.graphs.tree import Node


class CannotCapture(Exception):
    """The function ran under capture, but the capture cannot be replayed.

    Args:
        outputs: the call's results if capturing executes; None if the call must still run uncaptured.
        forever: whether another attempt would fail in the same way.
    """

    def __init__(self, reason: str, outputs: list[Any] | None = None, forever: bool = True) -> None:
        super().__init__(reason)
        self.outputs = outputs
        self.forever = forever


class Capturing:
    """One capture under way.

    Args:
        owns: whether a tensor is on the tree's device.
        inputs: the call's inputs. The list is emptied, because the function may free its inputs. See `give_back`.
    """

    def __init__(
        self,
        backend: GraphBackend,
        pool: GraphPool,
        stream: Any,
        device: int,
        *,
        owns: Callable[[torch.Tensor], bool],
        number: int,
        function: Function,
        parent: Node | None,
        inputs: list[Any],
        reason: str,
    ) -> None:
        self._backend = backend
        self._pool = pool
        self._stream = stream
        self._device = device
        self._owns = owns
        self.function = function
        self.node = Node(number, function, parent, backend.new_graph(pool), reason)
        self._sort_inputs(inputs)
        # Inputs that may die inside the capture are referred to by their storage alone; all others are kept alive.
        self._kept = [None if i in self._mortal else value for i, value in enumerate(inputs)]
        self._metas = {
            i: (storage_ref(inputs[i]), describe(inputs[i]), inputs[i].is_conj(), inputs[i].is_neg())
            for i in self._mortal
        }
        self._given: list[Any] = inputs
        self.changed: list[torch.Tensor] = []  # inputs whose shape or storage the function changed

    def _sort_inputs(self, inputs: Sequence[Any]) -> None:
        node, function = self.node, self.function
        caps = self._backend.caps
        ptrs = storage_ptrs(inputs)
        tensors = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        if caps.rebind_inputs:
            static = [i for i in tensors if i in function.static_inputs and i not in function.unstable]
            node.rebound = tuple(i for i in tensors if i not in static)
            node.static = tuple(static)
            node.ptrs = [value.data_ptr() if i in static else None for i, value in enumerate(inputs)]
            node.outside = tuple(tensors)
            node.overlap = overlap_pattern(inputs, node.outside)
            self._copied: tuple[int, ...] = ()
            self._mortal: frozenset[int] = frozenset()
            return
        before_this = node.path[:-1]
        given_out = {output.ptr for level in before_this for output in level if output is not None}
        managed = [i for i in tensors if ptrs[i] != 0 and ptrs[i] in given_out and i not in function.unstable]
        static = [
            i
            for i in tensors
            if i in function.static_inputs
            and i not in managed
            and i not in function.unstable
            and (i in function.read_in_place or is_aligned(inputs[i]))
        ]
        placed = {*managed, *static}
        node.managed = tuple(managed)
        node.static = tuple(static)
        node.ptrs = [value.data_ptr() if i in placed else None for i, value in enumerate(inputs)]
        node.outside = tuple(i for i in tensors if i not in managed)
        node.overlap = overlap_pattern(inputs, node.outside)
        self._copied = tuple(i for i in tensors if i not in placed)
        self._mortal = frozenset(managed)

    def run(self, check_pool: Any) -> list[Any]:
        """Capture the call and return its outputs.

        Args:
            check_pool: called with the addresses of buffers before the capture.

        Raises:
            CannotCapture: a replay cannot repeat what the function does.
            BaseException: what the function raised. The caller must then drop the node.
        """
        node, backend = self.node, self._backend
        parent = node.parent
        path_before = node.path[:-1]
        if isinstance(parent, Node):
            node.alive_before = liveness(path_before)
            node.dead_before = differing(parent.alive_after, node.alive_before)
        given = self._place_inputs()
        self._given.clear()
        sources = [Source(i, given[i]) for i in node.outside if is_plain(given[i])]
        self._register_generators(given)
        check_pool(self._buffer_ptrs)
        rebound = [given[i] for i in node.rebound]
        fixed = [*(given[i] for i in node.static), *self.function.constants]
        places = Places({i: given[i] for i in node.outside if is_plain(given[i])})
        values = None if self.function.proven or not rebound else digest(rebound)
        outputs: list[Any] | None = None
        random_state = torch.random.get_rng_state()
        try:
            with (
                self._backend.device_scope(self._device),
                node.graph.capture(stream=self._stream, inputs=rebound, fixed=fixed),
            ):
                del rebound, fixed
                outputs = list(self.function.model(given))
                given.clear()
        except CaptureError as error:
            if outputs is None:  # the function itself raised it
                raise
            torch.random.set_rng_state(random_state)  # because the function runs again, uncaptured
            raise CannotCapture(error.message) from None
        finally:
            if not backend.caps.capture_executes:  # the first replay draws the numbers
                torch.random.set_rng_state(random_state)
        if changed := places.changed():
            self.changed = list(changed.values())
            results = list(outputs) if backend.caps.capture_executes else None
            outputs.clear()
            self._buffers.clear()
            raise CannotCapture(self.function.changes(changed), results)
        self._buffers.clear()
        if self._writes is not None and (written := self._writes.seen()):
            # Only buffers were written; the caller's tensors are unchanged.
            self.function.found_writing(written)
            outputs.clear()
            names = ", ".join(self.function.input_name(i) for i in written)
            raise CannotCapture(f"mutation on input: {names} must be at a fixed place", forever=False)
        try:
            self._classify(outputs, sources, path_before)
        except CaptureError as error:
            results = self._results(outputs) if backend.caps.capture_executes else None
            raise CannotCapture(error.message, results) from None
        if node.graph.unexplained and backend.caps.rebind_outputs:
            node.unproven = values
        return self._finish(outputs)

    def _register_generators(self, given: Sequence[Any]) -> None:
        for value in given:
            if isinstance(value, torch.Generator):
                self._backend.register_generator(self.node.graph, value)

    def _place_inputs(self) -> list[Any]:
        """The inputs for the function, with filled buffers in place of copied inputs."""
        given = list(self._given)
        self._buffer_ptrs: tuple[int, ...] = ()
        self._writes: Writes | None = None
        self._buffers: list[torch.Tensor] = []
        if not self._copied:
            return given
        with self._backend.device_scope(self._device), self._pool.route(self._stream):
            buffers = [new_buffer(given[i]) for i in self._copied]
        copies = Copies(self._copied, [not_owning(buffer) for buffer in buffers])
        copies.run(given)
        self._buffer_ptrs = tuple(p for p in storage_ptrs(buffers) if p)
        for index, buffer in zip(self._copied, buffers, strict=True):
            given[index] = buffer
        self._writes = Writes(dict(zip(self._copied, buffers, strict=True)))
        if not self.function.warmed_up:  # else the warmup has detected writes to the tensors themselves
            self._buffers = buffers
        self.node.copies = copies
        self.node.copied_bytes += copies.nbytes
        return given

    def _classify(self, outputs: Any, sources: list[Source], path_before: Any) -> None:
        node = self.node
        parent = node.parent
        now = liveness(path_before)
        if isinstance(parent, Node):
            node.dead_after = differing(node.alive_before, now)
        find = parent.find if parent is not None else lambda _ptr: None
        node.specs = classify(
            outputs, sources, self.function.constants, find, self._owns, self.function.where
        )
        made = self._pool.live_ptrs()
        for position, spec in enumerate(node.specs):
            if spec.kind is Kind.NEW and spec.meta is not None and spec.meta.data_ptr not in made:
                raise CaptureError(
                    f"output {position} lies in memory that the capture did not allocate",
                    at=self.function.where(position),
                    fix="name tensors that the function closes over and returns in constants=",
                )
        node.cacheable = [False] * len(outputs)
        for position, (spec, out) in enumerate(zip(node.specs, outputs, strict=True)):
            if spec.kind is Kind.NEW and not self._backend.caps.rebind_outputs:
                assert spec.meta is not None
                node.outputs.append(PathOutput(storage_ref(out), spec.meta.data_ptr, spec.meta.nbytes))
                node.cacheable[position] = not spec.conj and not spec.neg
            elif spec.kind is Kind.ALIAS_NEW and not self._backend.caps.rebind_outputs:
                node.outputs.append(node.outputs[spec.index])
                node.cacheable[spec.index] = False
            elif spec.kind is Kind.ALIAS_PATH:
                node.outputs.append(node.path[spec.depth][spec.index])
                self._alias_ancestor(spec.depth, spec.index)
            else:
                node.outputs.append(None)

    def _alias_ancestor(self, depth: int, index: int) -> None:
        node = self.node
        ancestor = node.path_nodes()[depth]
        assert isinstance(ancestor, Node)
        owner = ancestor.specs[index]
        # The output may itself alias an earlier one.
        if owner.kind is Kind.ALIAS_PATH:
            self._alias_ancestor(owner.depth, owner.index)
        else:
            ancestor.mark_aliased(owner.index if owner.kind is Kind.ALIAS_NEW else index)
        storage = node.path[depth][index]
        node.preserved |= {
            i for i in node.managed if storage is not None and self._metas[i][0].recorded_ptr == storage.ptr
        }

    def _finish(self, outputs: Any) -> list[Any]:
        node, backend = self.node, self._backend
        node.kernels = node.graph.num_kernels
        if backend.caps.rebind_outputs:
            news = [out for out, spec in zip(outputs, node.specs, strict=True) if spec.kind is Kind.NEW]
            new_specs = [spec for spec in node.specs if spec.kind is Kind.NEW]
            node.graph.bind_outputs([like_fresh(*pair) for pair in zip(new_specs, news, strict=True)])
            for out in news:
                rehome(storage_ref(out))
            del news
            node.alive_after = liveness(node.path)
            return self._results(outputs)
        node.alive_after = liveness(node.path)
        results = self._results(outputs)
        outputs.clear()  # frees buffers that the function returned
        node.image = self._pool.checkpoint()
        if not backend.caps.capture_executes:
            node.copies.run(self._kept)
            node.graph.replay()
        return results

    def _results(self, outputs: Any) -> list[Any]:
        """The outputs, with the caller's inputs in place of their buffers."""
        results: list[Any] = []
        if not self.node.specs:  # classification failed
            return list(outputs)
        for out, spec in zip(outputs, self.node.specs, strict=True):
            given = self._kept[spec.index] if spec.kind in (Kind.INPUT, Kind.ALIAS_INPUT) else None
            if spec.kind is Kind.INPUT:
                out = given
            elif spec.kind is Kind.ALIAS_INPUT and spec.index in self._copied:
                assert given is not None
                out = alias_of_input(spec, given)
            results.append(out)
        return results

    def give_back(self) -> list[Any] | None:
        """Return the call's inputs after a failure, or None if one of them died inside the capture."""
        inputs = list(self._kept)
        for index, (ref, meta, conj, neg) in self._metas.items():
            if ref.use_count() == 0:
                return None
            inputs[index] = with_bits(ref.tensor(meta), conj, neg)
        return inputs
