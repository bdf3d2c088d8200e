"""Named plans: systems and models of the literature as compositions of terms, in one table."""

import msgspec


class NamedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan somebody published."""

    text: str
    """The plan in its canonical text."""
    cites: str
    note: str


PRESETS: dict[str, NamedPlan] = {
    "bsp": NamedPlan(
        text="allreduce, every(1)",
        cites='Valiant 1990, "A bridging model for parallel computation"',
        note="bulk-synchronous parallel: compute, exchange, wait for all, repeat",
    ),
    "horovod": NamedPlan(
        text="allreduce, every(1)",
        cites='Sergeev & Del Balso 2018, "Horovod: fast and easy distributed deep learning in TensorFlow"',
        note="ring all-reduce of gradients at every step",
    ),
    "tictac": NamedPlan(
        text="allreduce, every(1), order(needed)",
        cites='Hashemi et al. 2019, "TicTac: Accelerating Distributed Deep Learning with Communication Scheduling"',
        note="gradients of the first layers travel first, and the next forward pass waits layer by layer",
    ),
    "bosen": NamedPlan(
        text="allreduce, every(1), order(by=largest, budget=1mb)",
        cites='Wei et al. 2015, "Managed Communication and Consistency for Fast Data-Parallel Iterative Analytics"',
        note="the largest updates first, as many as a budget of bytes holds; synchronous here",
    ),
    "mxnet-kvstore": NamedPlan(
        text="server(shards=2), every(1)",
        cites='Chen et al. 2015, "MXNet: A Flexible and Efficient Machine Learning Library for Heterogeneous Systems"',
        note="dist_sync: servers add up the gradients of every step, which each host has summed in its memory; here "
        "the workers' optimizers step",
    ),
    "mxnet-kvstore-async": NamedPlan(
        text="server(shards=2, levels=2), async",
        cites='Chen et al. 2015, "MXNet: A Flexible and Efficient Machine Learning Library for Heterogeneous Systems"',
        note="dist_async: the workers of a host agree in every step, hosts wait for nobody; here the workers' "
        "optimizers make the changes",
    ),
    "project-adam": NamedPlan(
        text="allreduce, every(1), factors(batch=32, workers=2)",
        cites='Chilimbi et al. 2014, "Project Adam: Building an Efficient and Scalable Deep Learning Training System"',
        note="its fully connected layers: inputs and output gradients travel and are multiplied where they arrive, "
        "here by all workers in step; write the rows of your batch",
    ),
    "poseidon": NamedPlan(
        text="allreduce, every(1), factors(batch=32, workers=2)",
        cites='Zhang et al. 2017, "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on '
        'GPU Clusters"',
        note="each layer leaves as soon as its gradient is ready, as factors or to be summed, whichever takes fewer "
        "bytes; write the rows of your batch. A ring sums here, and servers did there",
    ),
    "sandblaster": NamedPlan(
        text="server(shards=2), every(1)",
        cites='Dean et al. 2012, "Large Scale Distributed Deep Networks"; Ooi et al. 2015, "SINGA: A Distributed Deep '
        'Learning Platform"',
        note="SINGA's synchronous topology: one group of workers, one group of servers; DistBelief ran L-BFGS on it",
    ),
    "dolphin": NamedPlan(
        text="server(auto), stale(3, round=20)",
        cites='Chun et al. 2016, "Dolphin: Runtime Optimization for Distributed Machine Learning"',
        note="the number of servers is tuned while the run trains, between two rounds; workers are yours to scale",
    ),
    "ssp": NamedPlan(
        text="server, stale(3)",
        cites='Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"',
        note="the fastest worker is at most three steps ahead; values are pulled when those at hand are staler",
    ),
    "essp": NamedPlan(
        text="server, stale(3, eager=true)",
        cites='Dai et al. 2015, "High-Performance Distributed ML at Scale through Parameter Server Consistency Models"',
        note="the same bound, and fresh values after every step",
    ),
    "geeps": NamedPlan(
        text="server, stale(0, prefetch=true)",
        cites='Cui et al. 2016, "GeePS: Scalable deep learning on distributed GPUs with a GPU-specialized parameter '
        'server"',
        note="values travel while the next batch is loaded; stale(3, prefetch=true) and async(prefetch=true) are its "
        "other modes. Its caches and swapping of GPU memory have no counterpart",
    ),
    "dynssp": NamedPlan(
        text="server, stale(3, rates=adaptive)",
        cites='Jiang et al. 2017, "Heterogeneity-aware Distributed Parameter Servers"',
        note="SSP whose servers scale a push by one over its staleness, so that those of slow workers undo less",
    ),
    "petuum": NamedPlan(
        text="server, stale(3), significant(0.05)",
        cites='Xing et al. 2015, "Petuum: A New Platform for Distributed Machine Learning on Big Data"; Wei et al. '
        '2015, "Managed Communication and Consistency for Fast Data-Parallel Iterative Analytics"',
        note="its parameter server: bounded staleness, and only changes that matter now; its scheduler of dependent "
        "variables (STRADS) is not here. A killed worker is replaced, which Petuum left to its user",
    ),
    "backup-workers": NamedPlan(
        text="server, deadline(60.0, backups=1)",
        cites='Chen et al. 2016, "Revisiting Distributed Synchronous SGD"',
        note="a step is taken with the changes of all workers but one, and a late one comes to nothing; its samples "
        "are leased again",
    ),
    "downpour": NamedPlan(
        text="server, async(rule=adagrad, rate=0.01)",
        cites='Dean et al. 2012, "Large Scale Distributed Deep Networks"',
        note="gradients pushed without waiting, Adagrad at the server; choose the rate for your model, and add "
        "samples=leased where a worker is always slower",
    ),
    "distbelief": NamedPlan(
        text="server(shards=2), async(rule=adagrad, rate=0.01)",
        cites='Dean et al. 2012, "Large Scale Distributed Deep Networks"',
        note="Downpour SGD on a sharded server; its L-BFGS runs under sandblaster with torch.optim.LBFGS, and its "
        "partitioned models are not part of this plan",
    ),
    "singa-downpour": NamedPlan(
        text="server(shards=2), async",
        cites='Ooi et al. 2015, "SINGA: A Distributed Deep Learning Platform"',
        note="several groups of one worker and a group of servers; a plan file says it by group sizes",
    ),
    "singa-sandblaster": NamedPlan(
        text="server(shards=2), every(1)",
        cites='Ooi et al. 2015, "SINGA: A Distributed Deep Learning Platform"',
        note="one group of workers and a group of servers; a plan file says it by group sizes",
    ),
    "singa-allreduce": NamedPlan(
        text="allreduce, every(1)",
        cites='Ooi et al. 2015, "SINGA: A Distributed Deep Learning Platform"',
        note="one group of workers that hold the parameters themselves; a plan file says it by group sizes",
    ),
    "singa-hogwild": NamedPlan(
        text="shared, every(1)",
        cites='Ooi et al. 2015, "SINGA: A Distributed Deep Learning Platform"',
        note="several groups of one worker on one copy in shared memory; a plan file says it by group sizes",
    ),
    "theano-mpi": NamedPlan(
        text="allreduce, every(1), fp16",
        cites='Ma et al. 2016, "Theano-MPI: a Theano-based Distributed Training Framework"',
        note="its synchronous exchange in half precision, also under mpirun; its asynchronous ones are easgd and "
        "server, async, fp16",
    ),
    "spec-sync": NamedPlan(
        text="server, async(speculate=0.5)",
        cites='Zhang et al. 2018, "Stay Fresh: Speculative Synchronization for Fast Distributed Machine Learning"',
        note="a step begins again when half of the others have pushed before its forward pass has ended; the paper "
        "tunes that moment and that number while it trains",
    ),
    "tf-ps": NamedPlan(
        text="server(shards=2), async",
        cites='Abadi et al. 2016, "TensorFlow: A system for large-scale machine learning"',
        note="asynchronous training on two servers; here the workers' own optimizers make the changes",
    ),
    "pipe-sgd": NamedPlan(
        text="allreduce, stale(1)",
        cites='Li et al. 2018, "Pipe-SGD: A Decentralized Pipelined SGD Framework for Distributed Deep Net Training"',
        note="every step is made with the mean gradient of the one before, which travels meanwhile",
    ),
    "local-sgd": NamedPlan(
        text="allreduce, local(8, average)",
        cites='Stich 2019, "Local SGD Converges Fast and Communicates Little"',
        note="eight steps of each worker by itself, then the mean of all",
    ),
    "sparknet": NamedPlan(
        text="allreduce, local(50, average)",
        cites='Moritz et al. 2016, "SparkNet: Training Deep Networks in Spark"',
        note="rounds of 50 steps; all-reduce takes the place of the driver, and each worker keeps its momentum",
    ),
    "bmuf": NamedPlan(
        text="allreduce, local(32, bmuf)",
        cites='Chen & Huo 2016, "Scalable training of deep learning machines by incremental block training"',
        note="block momentum 1 - 1/p on the mean change of every 32 steps",
    ),
    "diloco": NamedPlan(
        text="allreduce, local(500, diloco)",
        cites='Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models"',
        note="rounds of 500 steps, outer Nesterov with rate 0.7 and momentum 0.9; the paper's inner optimizer is AdamW",
    ),
    "streaming-diloco": NamedPlan(
        text="allreduce, local(500, diloco, overlap=true, fragments=5)",
        cites='Douillard et al. 2025, "Streaming DiLoCo with overlapping communication"',
        note="every 100 steps a fifth of the parameters leaves, and is applied 100 steps later; the paper quantizes "
        "what travels: write a codec beside it, such as int8",
    ),
    "dl4j": NamedPlan(
        text="allreduce, local(5, average, state=average)",
        cites='Eclipse Deeplearning4j, ParameterAveragingTrainingMaster; Su & Chen 2015, "Experiments on Parallel '
        'Training of Deep Neural Network using Model Averaging"',
        note="parameters and the state of the updaters are averaged every 5 steps",
    ),
    "easgd": NamedPlan(
        text="allreduce, local(10, easgd)",
        cites='Zhang et al. 2015, "Deep learning with Elastic Averaging SGD"',
        note="every 10 steps each replica and the centre are pulled towards each other; the synchronous form, beta 0.9",
    ),
    "crossbow": NamedPlan(
        text="allreduce, local(1, sma)",
        cites='Koliousis et al. 2019, "CROSSBOW: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers"',
        note="replicas of small batches, corrected at every step towards a central average model with momentum 0.9",
    ),
    "a-bsp": NamedPlan(
        text="allreduce, local(16, average, samples=leased, end=fastest)",
        cites='Wang et al. 2018, "Aggressive Synchronization with Partial Processing for Iterative ML Jobs"',
        note="the fastest worker's 16th step ends a round; what slow ones have not begun is trained first in the next",
    ),
    "butterfly": NamedPlan(
        text="mix(butterfly), every(1)",
        cites='Zhao & Canny 2013, "Butterfly mixing: Accelerating incremental-update algorithms on clusters"',
        note="after every step a worker takes the mean with one partner; here all meet after 64 steps, too",
    ),
    "dogwild": NamedPlan(
        text="datagrams, every(1)",
        cites='Noel & Osindero 2014, "Dogwild! Distributed Hogwild for CPU & GPU"',
        note="Hogwild over a network: every worker sends what it has changed in datagrams and waits for none; here all "
        "meet after 100 steps, too",
    ),
    "hogwild": NamedPlan(
        text="shared, every(1)",
        cites='Niu et al. 2011, "Hogwild!: A lock-free approach to parallelizing stochastic gradient descent"',
        note="one copy of the parameters in a host's memory, written by all workers without locks",
    ),
    "hogwildpp": NamedPlan(
        text="shared(clusters=2), every(1)",
        cites='Zhang et al. 2016, "HogWild++: A New Mechanism for Decentralized Asynchronous Stochastic Gradient '
        'Descent"',
        note="a copy for each of two clusters of workers, and a token that goes round them; with weights under which "
        "each step counts once, wherever the token is; write a cluster for each socket",
    ),
    "h2o": NamedPlan(
        text="shared, local(16, average)",
        cites='Candel et al. 2015, "Deep Learning with H2O"; H2O.ai, "H2O: scalable machine learning platform"',
        note="one copy of the parameters on each host, written by its workers without locks, and the mean of all hosts "
        "after 16 steps of each worker; H2O's train_samples_per_iteration",
    ),
    "firecaffe": NamedPlan(
        text="allreduce(tree), every(1)",
        cites='Iandola et al. 2016, "FireCaffe: Near-linear acceleration of deep neural network training on compute '
        'clusters"',
        note="gradients are summed along a reduction tree in every step; the paper adds large batches, which the "
        "script chooses",
    ),
    "malt": NamedPlan(
        text="allreduce(straight), local(5, average)",
        cites='Li et al. 2015, "MALT: Distributed Data-Parallelism for Existing ML Applications"',
        note="every 5 steps each worker sends its change straight to all others and averages what it gathers; peers "
        "wait for each other here, and a lost one stops no other",
    ),
    "1bit-sgd": NamedPlan(
        text="allreduce, every(1), onebit(2048)",
        cites='Seide et al. 2014, "1-Bit Stochastic Gradient Descent"',
        note="signs with error feedback, 1/32 of the bytes",
    ),
    "2bit-mxnet": NamedPlan(
        text="allreduce, every(1), twobit(0.01)",
        cites='Chen et al. 2015, "MXNet"; 2-bit compression of its KVStore',
        note="three levels around a threshold, with residual; MXNet's 0.5 is for gradients summed over a batch",
    ),
    "terngrad": NamedPlan(
        text="allreduce, every(1), ternary(clip=2.5, packing=plain)",
        cites='Wen et al. 2017, "TernGrad"',
        note="three levels per layer at random, clipped",
    ),
    "powersgd": NamedPlan(
        text="allreduce, every(1), lowrank(2)",
        cites='Vogels et al. 2019, "PowerSGD"',
        note="two thin factors a matrix, summed",
    ),
    "strom": NamedPlan(
        text="allreduce, every(1), threshold(0.01)",
        cites='Strom 2015, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing"',
        note="only what reaches a threshold travels",
    ),
    "nexus": NamedPlan(
        text="allreduce, local(auto, average), nonzero",
        cites='Wang et al. 2017, "Nexus: Bringing Efficient and Scalable Training to Deep Learning Frameworks"',
        note="workers of a host add up first, rounds are as long as the network asks for, and each tensor travels in "
        "the shorter of a dense and a sparse form; write every(1) for the codec alone, which is exact",
    ),
    "qsgd": NamedPlan(
        text="allreduce, every(1), qsgd(bits=4, bucket=512)",
        cites='Alistarh et al. 2017, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding"',
        note="stochastic levels in a code of varying length",
    ),
    "dgc": NamedPlan(
        text="allreduce, every(1), dgc(ratio=0.001, momentum=0.9, clip=0.0, warmup=0)",
        cites='Lin et al. 2018, "Deep Gradient Compression"',
        note="one element in a thousand, with momentum correction; give the optimizer no momentum",
    ),
    "esgd": NamedPlan(
        text="allreduce, every(1), esgd(ratio=0.125, momentum=0.9)",
        cites='Tao & Li 2018, "eSGD: Communication Efficient Distributed Deep Learning on the Edge"',
        note="the largest eighth travels, residuals fade",
    ),
    "gupta": NamedPlan(
        text="allreduce, every(1), fixed(bits=16, frac=12, rounding=stochastic), "
        "weights(bits=16, frac=8, rounding=stochastic)",
        cites='Gupta et al. 2015, "Deep Learning with Limited Numerical Precision"',
        note="weights and gradients in 16-bit fixed point, rounded at random",
    ),
    "dorefa": NamedPlan(
        text="allreduce, every(1), dorefa(w=1, a=2, g=6)",
        cites='Zhou et al. 2016, "DoReFa-Net"',
        note="1-bit weights, 2-bit activations, 6-bit gradients",
    ),
    "halp": NamedPlan(
        text="allreduce, every(1), halp(bits=8, mu=1.0, anchor=100, inner=200)",
        cites='De Sa et al. 2018, "High-Accuracy Low-Precision Training"',
        note="SVRG in 8 bits round an anchor; choose mu, anchor and inner for your problem",
    ),
}
