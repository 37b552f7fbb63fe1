"""Muon: orthogonal updates, scaled to AdamW's size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rolecast.learner.muon import Muon, orthogonalize


def with_singular_values(rows: int, columns: int, values: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(matrix, its left and its right singular vectors)."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(rows, len(values), generator=generator))[0]
    right = torch.linalg.qr(torch.randn(columns, len(values), generator=generator))[0]
    return left @ torch.diag(values) @ right.T, left, right


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (4, 12), (12, 4), (32, 16)])
@pytest.mark.parametrize("iterations", [4, 5])
def test_singular_values_come_near_one(rows: int, columns: int, iterations: int) -> None:
    values = torch.linspace(0.3, 1.0, min(rows, columns))
    matrix, _, _ = with_singular_values(rows, columns, values, seed=rows)
    found = torch.linalg.svdvals(orthogonalize(matrix[None], iterations)[0])
    assert found.min() > 0.6
    assert found.max() < 1.3


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (4, 12), (12, 4)])
def test_singular_vectors_stay(rows: int, columns: int) -> None:
    matrix, left, right = with_singular_values(rows, columns, torch.linspace(0.2, 1.0, 4), seed=1)
    inner = left.T @ orthogonalize(matrix[None], 5)[0] @ right
    assert torch.allclose(inner, torch.diag(inner.diagonal()), atol=1e-4)
    assert (inner.diagonal() > 0.5).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_size_of_the_gradient_does_not_matter(scale: float) -> None:
    matrix, _, _ = with_singular_values(6, 6, torch.linspace(0.3, 1, 6), seed=2)
    assert torch.allclose(orthogonalize(scale * matrix[None], 4), orthogonalize(matrix[None], 4), atol=1e-3)


def test_matrices_of_a_batch_do_not_mix() -> None:
    matrices = torch.stack([with_singular_values(3, 5, torch.tensor([0.2, 0.6, 1.0]), seed)[0] * (seed + 1) for seed in range(3)])
    together = orthogonalize(matrices, 4)
    for index in range(3):
        assert torch.allclose(together[index], orthogonalize(matrices[index : index + 1], 4)[0], atol=1e-5)


def test_no_gradient_gives_no_update() -> None:
    assert orthogonalize(torch.zeros(1, 3, 4), 4).tolist() == torch.zeros(1, 3, 4).tolist()


def stepped(parameters: list[Tensor], gradients: list[Tensor | None], lr: float, momentum: float = 0.95) -> list[Tensor]:
    """How far one step moves each parameter."""
    before = [p.detach().clone() for p in parameters]
    optimizer = Muon(parameters, lr, momentum)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return [p.detach() - b for p, b in zip(parameters, before, strict=True)]


def test_a_step_goes_against_the_orthogonal_gradient() -> None:
    gradient, _, _ = with_singular_values(4, 9, torch.linspace(0.3, 1, 4), seed=3)
    [moved] = stepped([torch.ones(4, 9, requires_grad=True)], [gradient], lr=0.1)
    assert torch.allclose(moved, -0.1 * 0.2 * 3.0 * orthogonalize(gradient[None], 4)[0], atol=1e-5)  # √9 = 3


def test_parameters_without_a_gradient_stay() -> None:
    gradient, _, _ = with_singular_values(4, 4, torch.linspace(0.3, 1, 4), seed=4)
    first, second = stepped([torch.ones(4, 4, requires_grad=True) for _ in range(2)], [None, gradient], lr=0.1)
    assert not first.any()
    assert second.any()


def test_parameters_of_several_shapes_each_get_their_own_update() -> None:
    shapes = [(4, 4), (2, 6), (4, 4)]
    gradients = [with_singular_values(*shape, torch.tensor([0.5, 1.0]), seed)[0] for seed, shape in enumerate(shapes)]
    moved = stepped([torch.zeros(*shape, requires_grad=True) for shape in shapes], list(gradients), lr=1.0)
    for gradient, move in zip(gradients, moved, strict=True):
        expected = -0.2 * max(gradient.shape) ** 0.5 * orthogonalize(gradient[None], 4)[0]
        assert torch.allclose(move, expected, atol=1e-4)


def test_momentum_is_remembered() -> None:
    first, second = (with_singular_values(3, 3, torch.linspace(0.3, 1, 3), seed)[0] for seed in (5, 6))
    parameter = torch.zeros(3, 3, requires_grad=True)
    optimizer = Muon([parameter], 1.0, momentum=0.5)
    parameter.grad = first
    optimizer.step()
    before = parameter.detach().clone()
    parameter.grad = second
    optimizer.step()
    buffer = 0.5 * (0.5 * first) + 0.5 * second
    nesterov = 0.5 * second + 0.5 * buffer
    expected = -0.2 * 3**0.5 * orthogonalize(nesterov[None], 4)[0]
    assert torch.allclose(parameter.detach() - before, expected, atol=1e-4)
