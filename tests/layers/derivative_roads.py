"""Derivatives of a layer, each by the plainest road through the reference path, and by every other road of torch."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import func
from torch.autograd import forward_ad
from torch.autograd.functional import hessian, jvp
from torch.func import functional_call


@dataclass(frozen=True)
class Numbers:
    """A layer with the point and the direction in which it is differentiated: the images and all parameters."""

    layer: torch.nn.Module
    point: dict[str, torch.Tensor]
    direction: dict[str, torch.Tensor]

    @classmethod
    def of(cls, layer, x):
        """Takes the layer's parameters for the point, and draws the direction."""
        point = {
            "x": x,
            **{name: parameter.detach() for name, parameter in layer.named_parameters()},
        }
        generator = torch.Generator().manual_seed(7)
        drawn = {
            name: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
            for name, t in point.items()
        }
        return cls(layer, point, drawn)

    @property
    def x(self):
        return self.point["x"]

    def output(self, point):
        return functional_call(
            self.layer, {k: t for k, t in point.items() if k != "x"}, (point["x"],)
        )

    def loss(self, point):
        return self.output(point).pow(3).sum()

    def loss_of_images(self, x):
        return self.layer(x).pow(3).sum()

    def leaves(self):
        """Makes a copy of the layer whose own parameters are differentiated."""
        layer, x = copy.deepcopy(self.layer), self.x.clone().requires_grad_()
        return layer, {"x": x, **dict(layer.named_parameters())}


def named(names, found, like):
    found = [torch.zeros_like(t) if g is None else g for g, t in zip(found, like, strict=True)]
    return dict(zip(names, found, strict=True))


def dotted(numbers, gradients):
    pairs = zip(gradients, numbers.direction.values(), strict=True)
    return sum(
        (gradient * direction).sum() for gradient, direction in pairs if gradient is not None
    )


def gradient_twice(numbers):
    layer, leaves = numbers.leaves()
    inputs = list(leaves.values())
    first = torch.autograd.grad(layer(leaves["x"]).pow(3).sum(), inputs, create_graph=True)
    return named(
        leaves, torch.autograd.grad(dotted(numbers, first), inputs, allow_unused=True), inputs
    )


def terms_of_gradient_twice(numbers):
    """What each number of the output adds to the second derivatives."""
    layer, leaves = numbers.leaves()
    inputs, found = list(leaves.values()), []
    for cube in layer(leaves["x"]).pow(3).flatten():
        first = torch.autograd.grad(cube, inputs, create_graph=True)
        second = torch.autograd.grad(
            dotted(numbers, first), inputs, retain_graph=True, allow_unused=True
        )
        found.append(named(leaves, second, inputs))
    return {name: torch.stack([one[name] for one in found]) for name in leaves}


def backward_to_inputs(numbers):
    layer, leaves = numbers.leaves()
    inputs = list(leaves.values())
    layer(leaves["x"]).pow(3).sum().backward(create_graph=True, inputs=inputs)
    first = [leaf.grad for leaf in inputs]
    for leaf in inputs:
        leaf.grad = None
    dotted(numbers, first).backward(inputs=inputs)
    return named(leaves, [leaf.grad for leaf in inputs], inputs)


def forward_over_reverse(numbers):
    return func.jvp(func.grad(numbers.loss), (numbers.point,), (numbers.direction,))[1]


def reverse_over_reverse(numbers):
    return func.vjp(func.grad(numbers.loss), numbers.point)[1](numbers.direction)[0]


def reverse_over_forward(numbers):
    return func.grad(lambda point: func.jvp(numbers.loss, (point,), (numbers.direction,))[1])(
        numbers.point
    )


def tangents_of_a_gradient(numbers):
    with forward_ad.dual_level():
        point = {
            name: forward_ad.make_dual(number.clone().requires_grad_(), numbers.direction[name])
            for name, number in numbers.point.items()
        }
        inputs = list(point.values())
        found = torch.autograd.grad(numbers.loss(point), inputs, allow_unused=True)
        tangents = [None if g is None else forward_ad.unpack_dual(g).tangent for g in found]
    return named(point, tangents, list(numbers.point.values()))


def hessian_twice(numbers):
    return {"x": hessian(numbers.loss_of_images, numbers.x)}


def hessian_batched(numbers):
    return {"x": hessian(numbers.loss_of_images, numbers.x, vectorize=True)}


def hessian_func(numbers):
    return {"x": func.hessian(numbers.loss_of_images)(numbers.x)}


def terms_of_gradient_thrice(numbers):
    layer, leaves = numbers.leaves()
    inputs = list(leaves.values())
    derivative = layer(leaves["x"]).pow(3).sum()
    for _ in range(2):
        first = torch.autograd.grad(derivative, inputs, create_graph=True, allow_unused=True)
        derivative = dotted(numbers, first)
    third = named(leaves, torch.autograd.grad(derivative, inputs, allow_unused=True), inputs)
    return torch.cat(
        [(third[name] * direction).flatten() for name, direction in numbers.direction.items()]
    )


def gradient_thrice(numbers):
    return {"third": terms_of_gradient_thrice(numbers).sum()}


def thrice_func(numbers):
    def along(function):
        return lambda point: func.jvp(function, (point,), (numbers.direction,))[1]

    return {"third": along(along(along(numbers.loss)))(numbers.point)}


def jacobian_by_rows(numbers):
    layer, leaves = numbers.leaves()
    inputs, y = list(leaves.values()), layer(leaves["x"])
    rows = [
        torch.autograd.grad(one, inputs, retain_graph=True, allow_unused=True)
        for one in y.flatten()
    ]
    rows = [named(leaves, row, inputs) for row in rows]
    return {name: torch.stack([row[name] for row in rows]) for name in leaves}


def jacobian_batched(numbers):
    layer, leaves = numbers.leaves()
    inputs, y = list(leaves.values()), layer(leaves["x"])
    each = torch.eye(y.numel(), dtype=y.dtype).view(-1, *y.shape)
    found = torch.autograd.grad(y, inputs, each, is_grads_batched=True, allow_unused=True)
    return named(leaves, found, [t.expand(y.numel(), *t.shape) for t in inputs])


def jacobian_reverse(numbers):
    return func.jacrev(lambda point: numbers.output(point).flatten())(numbers.point)


def jacobian_forward(numbers):
    return func.jacfwd(lambda point: numbers.output(point).flatten())(numbers.point)


def tangent_by_reverse(numbers):
    names = list(numbers.point)
    values, direction = tuple(numbers.point.values()), tuple(numbers.direction.values())
    return {
        "y": jvp(
            lambda *given: numbers.output(dict(zip(names, given, strict=True))), values, direction
        )[1]
    }


def tangent_func(numbers):
    return {"y": func.jvp(numbers.output, (numbers.point,), (numbers.direction,))[1]}


def tangent_dual(numbers):
    with torch.no_grad(), forward_ad.dual_level():
        point = {
            name: forward_ad.make_dual(t, numbers.direction[name])
            for name, t in numbers.point.items()
        }
        return {"y": forward_ad.unpack_dual(numbers.output(point)).tangent}


def each_image_by_itself(numbers):
    return {"y": torch.cat([numbers.layer(image[None]) for image in numbers.x]).detach()}


def images_mapped(numbers):
    with torch.no_grad():
        return {"y": func.vmap(lambda image: numbers.layer(image[None])[0])(numbers.x)}


def gradient_for_each_image(numbers):
    layer, leaves = numbers.leaves()
    parameters = {name: leaf for name, leaf in leaves.items() if name != "x"}
    rows = []
    for image in numbers.x:
        loss = layer(image[None]).pow(3).sum()
        rows.append(
            named(parameters, torch.autograd.grad(loss, parameters.values()), parameters.values())
        )
    return {name: torch.stack([row[name] for row in rows]) for name in parameters}


def gradients_mapped(numbers):
    parameters = {name: t for name, t in numbers.point.items() if name != "x"}
    gradient = func.grad(lambda given, image: numbers.loss({**given, "x": image[None]}))
    return func.vmap(gradient, in_dims=(None, 0))(parameters, numbers.x)


def several(numbers):
    return {
        name: torch.stack([t, t + 0.1 * numbers.direction[name]])
        for name, t in numbers.point.items()
    }


def each_layer_by_itself(numbers):
    points = several(numbers)
    ys = [numbers.output({name: t[n] for name, t in points.items()}) for n in range(2)]
    return {"y": torch.stack(ys).detach()}


def layers_mapped(numbers):
    with torch.no_grad():
        return {"y": func.vmap(numbers.output)(several(numbers))}


ROADS: dict[Callable, tuple[Callable, ...]] = {
    gradient_twice: (
        *(
            gradient_twice,
            backward_to_inputs,
            forward_over_reverse,
            reverse_over_reverse,
            reverse_over_forward,
        ),
        tangents_of_a_gradient,
    ),
    hessian_twice: (hessian_twice, hessian_batched, hessian_func),
    gradient_thrice: (gradient_thrice, thrice_func),
    jacobian_by_rows: (jacobian_by_rows, jacobian_batched, jacobian_reverse, jacobian_forward),
    tangent_by_reverse: (tangent_by_reverse, tangent_func, tangent_dual),
    each_image_by_itself: (images_mapped,),
    gradient_for_each_image: (gradients_mapped,),
    each_layer_by_itself: (layers_mapped,),
}
"""For each derivative, the plainest road to it, and the roads that must lead to the same numbers."""
