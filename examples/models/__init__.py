"""Eleven models of different kinds, small enough for one core: name -> how to make, feed and train it.

    from models import TABLE
    entry = TABLE["resnet18"]
    model = pretrained("resnet18")      # weights of `make zoo`, checked

Networks of the performance studies (AlexNet, GoogLeNet, ResNet, DenseNet) in reduced width for 28x28 images, and one
of every other family a training system must carry. `zoo.py` trains any of them; `shoal bench models` measures them.
"""

from .alexnet import alexnet
from .data import MNIST_FILES, TEXT_FILE, images, noise_and_images, texts, writer
from .densenet import densenet
from .entry import Entry
from .gan import GAN, critic_loss, maker_loss
from .googlenet import googlenet
from .graph import GCN, graphs
from .pretrained import pretrained
from .resnet import resnet18, resnet50
from .small import LSTM, autoencoder, classify, mlp, reconstruct

__all__ = ["TABLE", "Entry", "pretrained"]

NAMES_CLASS = {"": classify}
ADVERSARIES = {"critic": critic_loss, "maker": maker_loss}

TABLE: dict[str, Entry] = {
    "mlp": Entry(make=mlp, data=images, losses=NAMES_CLASS, kind="classifier", files=MNIST_FILES),
    "alexnet": Entry(make=alexnet, data=images, losses=NAMES_CLASS, kind="classifier", files=MNIST_FILES),
    "googlenet": Entry(make=googlenet, data=images, losses=NAMES_CLASS, kind="classifier", files=MNIST_FILES),
    "resnet18": Entry(make=resnet18, data=images, losses=NAMES_CLASS, kind="classifier", files=MNIST_FILES),
    "resnet50": Entry(make=resnet50, data=images, losses=NAMES_CLASS, kind="classifier", files=MNIST_FILES),
    "densenet": Entry(make=densenet, data=images, losses=NAMES_CLASS, kind="classifier", files=MNIST_FILES),
    "lstm": Entry(make=LSTM, data=images, losses=NAMES_CLASS, kind="classifier", files=MNIST_FILES, rate=1e-2),
    "transformer": Entry(make=writer, data=texts, losses=NAMES_CLASS, kind="classifier", files=(TEXT_FILE,), narrow=32),
    "autoencoder": Entry(
        make=autoencoder, data=images, losses={"": reconstruct}, kind="autoencoder", files=MNIST_FILES
    ),
    "gan": Entry(make=GAN, data=noise_and_images, losses=ADVERSARIES, kind="gan", files=MNIST_FILES),
    "gcn": Entry(make=GCN, data=graphs, losses=NAMES_CLASS, kind="classifier", rate=1e-2),
}
