"""Small modules, each of which does one thing that makes a graph hard to cut."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 6


class Trunk(nn.Module):
    """Two linear maps with something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))

    def between(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class WritesThroughView(Trunk):
    """A write into a part of a tensor that is read as a whole afterwards."""

    def between(self, x: Tensor) -> Tensor:
        y = x + 1
        y[:, 1:3] *= 2
        return y + x


class WritesRow(Trunk):
    """A tensor that is filled part by part."""

    def between(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[:, 0] = x[:, 1]
        y[:, 2:] = torch.exp(x[:, 2:])
        return y


class CountsInBuffer(Trunk):
    """A running mean that is read ahead of its update, by which it is divided behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def between(self, x: Tensor) -> Tensor:
        scaled = x / self.mean.clone()
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.calls += 1
        return torch.sigmoid(scaled) * self.mean.clone()


class WithoutGradients(Trunk):
    """Something that is computed from parameters without gradients."""

    def between(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = torch.softmax(self.second.weight @ x.mean(0), 0)
        return x * scale


class LowerPrecision(Trunk):
    """A part under autocast, and a part of it that is not."""

    def between(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.second(x)
            with torch.autocast("cpu", enabled=False):
                z = self.second(x.float())
        return y.float() * z


class ManyOutputs(Trunk):
    """Returns a nested structure with an input, one tensor twice, and something that is no tensor."""

    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, object]:
        y = torch.relu(self.first(x))
        z = self.second(y) * scale
        return {"last": z, "pair": (y, [z, None]), "scale": scale, "size": 3}


class Tied(nn.Module):
    """An embedding that is the head too, and one layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(9, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 9, bias=False)
        self.head.weight = self.tokens.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.again(torch.tanh(self.again(self.tokens(tokens)))))


class Masked(nn.Module):
    """A causal mask and positions, made in the forward pass, that three layers read, and padding from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.register_buffer("slope", torch.linspace(0, 1, WIDTH))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        length = x.shape[1]
        mask = torch.full((length, length), -9.0, device=x.device).triu(1)[None]
        bias = (mask + torch.where(padding[:, None] > 0, 0.0, -9.0)).to(x.dtype)
        for layer in self.layers:
            x = x + torch.softmax(x @ x.transpose(1, 2) + bias, -1) @ layer(x) * self.slope
        return x


class Rated(nn.Module):
    """A table that is made from a buffer, and read by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("rate", torch.linspace(0, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        table = torch.exp(self.rate).cumsum(0)
        return self.second(self.first(x) * table) * table


class Dropping(nn.Module):
    """Dropout and batch norm: both do something else in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.dropout(torch.relu(self.norm(self.first(x))), 0.3, self.training)
        return self.second(functional.dropout(hidden, 0.2, self.training))


class OtherInEvaluation(Trunk):
    """A branch that only training takes."""

    def between(self, x: Tensor) -> Tensor:
        return torch.tanh(x) if self.training else x


class Functional(nn.Module):
    """Matrices, and functions of them, without modules inside; every third value is a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.randn(WIDTH, WIDTH) / WIDTH for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for number, matrix in enumerate(self.matrices):
            y = torch.tanh(functional.linear(x, matrix))
            x = x + y if number == 2 else y
        return x


class LooksAtValuesInEvaluation(Trunk):
    """Training can be captured, evaluation cannot."""

    def between(self, x: Tensor) -> Tensor:
        return x if self.training or x.sum() > 0 else -x


class LooksAtValues(Trunk):
    """A branch that depends on a value."""

    def between(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class ReturnsNumbers(Trunk):
    """Returns no tensor."""

    def forward(self, x: Tensor) -> tuple[int, None]:
        self.first(x)
        return 3, None
