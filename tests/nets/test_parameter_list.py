"""`ParameterList` has what `net.parameters()` has, also after the network was changed."""

from __future__ import annotations

import torch
from torch import nn

from fakes import tiny_decoder
from ponder.nets.parameter_list import ParameterList


def same(listed: ParameterList, net: nn.Module) -> bool:
    return {id(p) for p in listed()} == {id(p) for p in net.parameters()}


def test_parameters_are_those_of_the_network() -> None:
    net = tiny_decoder()
    assert same(ParameterList(net), net)


def test_a_new_parameter_object_is_found() -> None:
    net = tiny_decoder()
    listed = ParameterList(net)
    owner, name = next((m, n) for m in net.modules() for n, p in m._parameters.items() if p is not None)
    setattr(owner, name, nn.Parameter(torch.zeros(3)))
    assert same(listed, net)


def test_replaced_added_and_removed_modules_are_found() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.SiLU(), nn.Linear(2, 2, bias=False))
    listed = ParameterList(net)
    net[0] = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert same(listed, net) and len(listed()) == 5
    net[0][0] = nn.Linear(3, 3)
    assert same(listed, net)
    net[1].register_parameter("slope", nn.Parameter(torch.ones(1)))  # a module that had none
    assert same(listed, net) and len(listed()) == 6
    net[1].add_module("inner", nn.Linear(1, 1))
    assert same(listed, net) and len(listed()) == 8
    del net[2]
    assert same(listed, net) and len(listed()) == 7
