"""MobileNetV2: inverted residuals with depthwise convolutions, after Sandler et al., arXiv:1801.04381."""

from __future__ import annotations

from torch import Tensor, nn

from staticrt.models.resnet import conv_norm

# expansion, channels, blocks, stride of the first block: table 2 of the paper
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expand, filter each channel apart, project; a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        steps: list[nn.Module] = []
        if expansion != 1:
            steps += [conv_norm(inputs, hidden, 1), nn.ReLU6(inplace=True)]
        steps += [conv_norm(hidden, hidden, 3, stride=stride, groups=hidden), nn.ReLU6(inplace=True)]
        self.steps = nn.Sequential(*steps, conv_norm(hidden, outputs, 1))
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.steps(x)
        return x + out if self.has_shortcut else out


class MobileNetV2(nn.Module):
    """Image classifier.

    forward: images float32 [batch, 3, height, width], sizes >= 32 -> float32 [batch, classes].
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_norm(3, 32, 3, stride=2), nn.ReLU6(inplace=True)]
        channels = 32
        for expansion, outputs, blocks, first_stride in STAGES:
            for index in range(blocks):
                stride = first_stride if index == 0 else 1
                layers.append(InvertedResidual(channels, outputs, stride=stride, expansion=expansion))
                channels = outputs
        layers += [conv_norm(channels, 1280, 1), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(1280, classes)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.dropout(self.layers(images).mean((2, 3))))
        return out
