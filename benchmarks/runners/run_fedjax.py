"""FedJAX: its federated averaging under jit.  Its last batches are filled up: a client of 600 samples sees 608."""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from task import BATCH, LR, Clock, report, start

args, task = start()
rounds = args.rounds + args.warmup
if args.model == "mlp":
    params = [jnp.asarray(p.T) for p in task.params]

    def apply(params, x):
        w1, b1, w2, b2, w3, b3 = params
        h = jax.nn.relu(x.reshape(len(x), -1) @ w1 + b1)
        return jax.nn.relu(h @ w2 + b2) @ w3 + b3
else:
    # channels last, as XLA likes them on a CPU: kernels [height, width, in, out], features in that order
    k1, b1, k2, b2, w, *rest = task.params
    side = int((w.shape[1] // len(k2)) ** 0.5)
    features = w.reshape(len(w), len(k2), side, side).transpose(2, 3, 1, 0).reshape(-1, len(w))
    rest = [p.T for p in rest]  # of a vector it is the vector
    params = [jnp.asarray(p) for p in (k1.transpose(2, 3, 1, 0), b1, k2.transpose(2, 3, 1, 0), b2, features, *rest)]

    def convolve(x, kernel, bias):
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
        pooled = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jax.nn.relu(pooled)

    def apply(params, x):
        k1, b1, k2, b2, *linear = params
        h = convolve(convolve(x.transpose(0, 2, 3, 1), k1, b1), k2, b2)
        h = h.reshape(len(x), -1) @ linear[0] + linear[1]
        for w, b in zip(linear[2::2], linear[3::2], strict=True):
            h = jax.nn.relu(h) @ w + b
        return h


def loss(params, batch, rng):
    """Cross-entropy of each sample."""
    logits = jax.nn.log_softmax(apply(params, batch["x"]))
    return -jnp.take_along_axis(logits, batch["y"][:, None], 1)[:, 0]


data = fedjax.InMemoryFederatedData({i: {"x": task.x[p], "y": task.y[p]} for i, p in enumerate(task.parts)})
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    fedjax.grad(loss),
    fedjax.optimizers.sgd(LR),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH),
)
state, clock = algorithm.init(params), Clock()
for t in range(rounds):
    keys = jax.random.split(jax.random.PRNGKey(t), len(task.cohorts[t]))
    clients = [(i, data.get_client(i), key) for i, key in zip(task.cohorts[t].tolist(), keys, strict=True)]
    state, _ = algorithm.apply(state, clients)
    jax.block_until_ready(state.params)
    clock()
logits = jax.jit(apply)(state.params, task.test_x)
report(args, task, clock, float((np.asarray(logits).argmax(1) == task.test_y).mean()))
