"""ResNet-18 and ResNet-50, after He et al., arXiv:1512.03385 (stride in the 3x3 convolution of a bottleneck)."""

from __future__ import annotations

from torch import Tensor, nn


def conv_norm(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution without bias, padded to keep the size at stride 1, and batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Residual(nn.Module):
    """A stack of convolutions beside a shortcut; two 3x3, or a 1x1-3x3-1x1 bottleneck."""

    def __init__(self, inputs: int, width: int, *, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            steps = [conv_norm(inputs, width, 1), conv_norm(width, width, 3, stride=stride)]
            last = conv_norm(width, outputs, 1)
        else:
            steps = [conv_norm(inputs, width, 3, stride=stride)]
            last = conv_norm(width, outputs, 3)
        self.steps = nn.ModuleList(steps)
        self.last = last
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        for step in self.steps:
            x = step(x).relu_()
        out: Tensor = self.last(x) + shortcut
        return out.relu_()


class ResNet(nn.Module):
    """Image classifier.

    forward: images float32 [batch, 3, height, width], sizes >= 32 -> float32 [batch, classes].
    """

    def __init__(self, depths: tuple[int, ...], *, bottleneck: bool, classes: int = 1000) -> None:
        super().__init__()
        self.stem = conv_norm(3, 64, 7, stride=2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Residual(channels, width, stride=stride, bottleneck=bottleneck))
                channels = 4 * width if bottleneck else width
        self.blocks = nn.Sequential(*blocks)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.stem(images).relu_())
        out: Tensor = self.head(self.average(self.blocks(x)).flatten(1))
        return out


def resnet18() -> ResNet:
    return ResNet((2, 2, 2, 2), bottleneck=False)


def resnet50() -> ResNet:
    return ResNet((3, 4, 6, 3), bottleneck=True)
