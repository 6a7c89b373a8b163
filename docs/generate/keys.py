"""What the sections and keys of a configuration mean, in a sentence each. Values, defaults and rules are not here."""

from __future__ import annotations

SECTIONS = {
    "data": "Which records, and who holds them.",
    "model": "What is trained.",
    "fairness": "Which gap between groups is to be small, and how much it weighs.",
    "federation": "How the data holders train together.",
    "privacy": "What is protected. Without `epsilon` and without noise nothing is, and the output says so.",
    "aggregation": "How the updates of the data holders are added up.",
    "run": "Seeds, files, and where the run takes place.",
}

KEYS = {
    "data.name": 'The dataset; `"csv"` is your own table. Its options, [below](#options-of-the-datasets), are further '
    "keys of this section.",
    "data.test_fraction": "Expected share of the records that are kept for testing. Decided record by record.",
    "model.name": '`"logistic"`, `"mlp"`, or [a model of your own](../howto/own-model.md), `"package.module:factory"`.',
    "model.hidden": "Widths of the hidden layers of `mlp`.",
    "fairness.notion": "`statistical_parity`, `equal_opportunity`, `equalized_odds`, `predictive_equality`, "
    "`risk_parity`, `conditional_statistical_parity`, or [one of your own](../howto/own-notion.md), "
    '`"package.module:name"`.',
    "fairness.lambda": "Strength of the fairness penalty: loss + λ · MMD². 0 does nothing.",
    "fairness.target": "The largest gap of the notion between decisions, in the population, that you would accept. In "
    "place of `fairness.lambda`, which [follows the gap](../embedding.md#decisions-and-a-target) between decisions.",
    "fairness.kernel": "Kernel of the MMD: `energy`, `gaussian:ℓ`, `laplace:ℓ`, `matern32:ℓ`, `matern52:ℓ`, `rq:ℓ:α`, "
    "`cauchy:ℓ`; sums with `+`, multiples with `*`.",
    "fairness.tracker": "What clients share about the groups' scores: noisy scores of some records (`samples`), or one "
    "noisy vector of features of all of them ([`embedding`](../embedding.md)). Unset: `embedding`, but `samples` with "
    "CKKS, for losses without a range, and where a key of shared scores is named (`samples`, `quotas`, "
    "`privacy.prediction_rate`, Laplace noise, `kernel_correction`).",
    "fairness.features": "Features of a score that the [embedding tracker](../embedding.md) shares; unless given, as "
    "many as the kernel needs.",
    "fairness.samples": "Scores shared per group and round, by all clients together.",
    "fairness.quotas": "How shared scores are divided among clients: by a draw (unbiased), or always in proportion.",
    "federation.method": "`mmd_fedavg` tracks global fairness (the paper's method). `fedavg`: no fairness. "
    "`centralized`: all records in one place, for comparison, in as many steps as the largest client takes. The others "
    "are published baselines.",
    "federation.optimizer": "How updates become the next model.",
    "federation.rounds": "Communication rounds.",
    "federation.local_epochs": "Passes of a client over its records in a round (without DP-SGD).",
    "federation.batch_size": "Records in a minibatch (without DP-SGD).",
    "federation.learning_rate": "Step size at the clients. Unset, 1 where a private round is one step on the sum of "
    "all gradients ([masks](../howto/secure-sums.md)).",
    "federation.learning_rate_decay": "The step is multiplied by this after every round.",
    "federation.local_optimizer": "How a client takes its steps.",
    "federation.average_last": "The result is the mean of the models of this share of the rounds, the last ones. "
    "Averages noise out and costs no privacy. 0: the last model.",
    "federation.server_learning_rate": "Step of the server's optimizer; by default that of its authors.",
    "federation.clients_per_round": "How many clients train in a round; by default all. Masks need "
    "`aggregation.smallest_cohort` of them.",
    "federation.drift_correction": "Lets a client correct the witness for its own moves within a round. `shared` stays "
    "stable for a large λ. Not with DP-SGD. Unset: `shared` with a target and without DP-SGD, else `none`.",
    "federation.lagged_scores": "Scores, or sums of features, under the model of the round before: they leave with its "
    "updates, so that a round has one exchange instead of two, and under masks two instead of four. Unset: true with "
    "masks on Flower, else false; a run's `config.toml` has the value.",
    "federation.scaling": "`moments`: features are standardised by sums of them, and of their squares, which clients "
    "release once before the first round (see [Defaults](../howto/defaults.md)). `none`: they are as the encoder gives "
    "them. Unset: `moments` where there is a `fairness.target` (`none` at client level), else as they are.",
    "federation.precondition": "Logistic regression with `scaling`: features are also whitened, by released sums of "
    "their products. Unset: true where the declared number of records is large enough for that to pay.",
    "federation.proximal": "μ of FedProx.",
    "federation.agnostic_step": "Step γτ of the clients' weights (agnostic).",
    "federation.fairfed_beta": "β of FairFed.",
    "federation.fedfb_step": "α of FedFB.",
    "privacy.epsilon": "ε of everything that leaves a client in this run, for every record of it, or for all of them "
    'together (`updates = "client_level"`). Noise is calibrated to it.',
    "privacy.delta": "δ. Well below one over the number of records.",
    "privacy.records": "How many records all data holders have together, if that is public: δ must be below one over "
    "it. Without it, a run whose released counts add up to n ≥ 1/δ uses δ = 1/(10·n). `data.records` means the same, "
    "but for synthetic data.",
    "privacy.target_method": "The bound by which noise is calibrated. PLD is tighter.",
    "privacy.counts": "Noise on the numbers of records per group. `public`: declared public; then neighbours differ by "
    "replacing a record, which costs more. Unset, `gaussian` where they are totals under masks; `laplace`, if it is "
    "named, rules masks out.",
    "privacy.predictions": "Noise on shared scores. `none` is allowed, and the statement then says ε = ∞.",
    "privacy.updates": "`dp_sgd`: per-record clipping and noise by Opacus. `client_level`: whole updates are clipped, "
    "and [whole data holders](../howto/client-level.md) are protected.",
    "privacy.evaluation": "Noisy counts of decisions on test records, on which verdict, accuracy and unfairness rest. "
    "Default: `gaussian`; `none` where whole clients are protected, for regression, without test records, and where "
    "neither ε nor its noise is given. `laplace` rules masks out.",
    "privacy.count_noise": "Scale, in records. Given noise is kept as it is, and the rest is calibrated.",
    "privacy.prediction_noise": "Scale, in units of the score.",
    "privacy.noise_multiplier": "DP-SGD: noise scale over `max_grad_norm`. At client level: noise of the sum over "
    "the largest part of one client, `max_update_norm` times its weight.",
    "privacy.evaluation_noise": "Scale, in records.",
    "privacy.moments_noise": "`federation.scaling`: noise scale over the largest part of one record. Unset: what makes "
    "the release cost a tenth of the squared Gaussian budget μ² of the run.",
    "privacy.products_noise": "`federation.precondition`: the same for products, at a quarter of what that leaves.",
    "privacy.count_share": "How much of ε the counts may cost by themselves.",
    "privacy.prediction_share": "The same for scores (0.5 unless given) or features (0.3). Updates get the rest.",
    "privacy.equalise_groups": "One sampling rate for the scores of all groups, so that a small one pays no more.",
    "privacy.distributed_noise": "Every client adds a share of the noise of sums; the sum has all of it. Default: with "
    "masks. Without them it is refused, but for runs that were begun so.",
    "privacy.smallest_cohort": "Another name of `aggregation.smallest_cohort`.",
    "privacy.evaluation_share": "How much of ε the evaluation may cost by itself. 1: all of it, from the account of "
    "the test records: rows then name their side of the division, and a record pays for its own (embedding tracker). "
    "With records given from Python, whoever names 1 declares that each is on one side alone.",
    "privacy.sampling_rate": "DP-SGD: how likely a record is in a minibatch. Given, together with the next two, the "
    "whole plan is fixed before its first release; otherwise it follows from released counts, in a second phase.",
    "privacy.local_steps": "DP-SGD: steps a round. Default: with masks 1, on the sum of all clients' gradients, whose "
    "noise they share; else `local_epochs` / sampling rate. With more than 1 every client adds all of its noise.",
    "privacy.prediction_rate": "How likely a record's score is shared in a round.",
    "privacy.max_grad_norm": "Every record's gradient is clipped to this norm.",
    "privacy.max_update_norm": "At client level: a client's whole update of a round is clipped to this norm.",
    "privacy.score_range": "To clip scores that have no range of their own, such as losses.",
    "privacy.kernel_correction": "`deconvolve` removes the effect of the noise on average: the penalty you asked for, "
    "at more variance. Not every kernel allows it.",
    "privacy.min_count": "Clients and groups with a smaller released count are dropped.",
    "privacy.retries": "Releases a client may repeat because a crash lost them. Part of the plan, and paid for.",
    "privacy.dataset": "The name under which the ledger keeps the data's budget. Default: the name of the data file.",
    "aggregation.scheme": "`bfv`: exact encrypted sums; `ckks`: approximate ones, flooded with noise; `masked`: masks "
    "and a common pad, 4 bytes a number; `plain`: the server sees every update. Default: `bfv` for a private run, "
    "`plain` for another.",
    "aggregation.masks": "Mask every contribution, so that nobody can open a single one: `bfv`, or `masked`, which "
    "always does. Default: on in a private run of 3 clients or more, unless "
    "[another key rules it out](../howto/secure-sums.md#when-they-are-on).",
    "aggregation.colluders": "With masks: how many clients may collude with the server. Default: a third, at least 1.",
    "aggregation.smallest_cohort": "With masks: no sum of fewer clients opens. Default: nine tenths of them; all, if "
    "they are fewer than 5.",
    "aggregation.quantise": "`plain` only: round as the encrypted schemes do, for equal results.",
    "aggregation.range": "A client's change of one parameter in one round is clamped to ± this.",
    "aggregation.identities": "Masks on several machines: every data holder's public signing key, by its name "
    "(`privfair keys identity`). Simulations make their own.",
    "aggregation.keys": "Folder of `privfair keys new`. Default: keys made for the run.",
    "run.seed": "Seeds synthetic data, split, initial model and minibatches. Never the privacy noise.",
    "run.reproducible_noise": "Seeds privacy noise too, for simulations. Voids every ε claim.",
    "run.ledger": "`sqlite:///FILE` or `postgresql://…`. Default: `$PRIVFAIR_LEDGER`, or `privfair-ledger.sqlite` in "
    "this folder.",
    "run.key": "The owner's key file (`privfair budget new-key`), for signed ledgers and fingerprints.",
    "run.out": "Folder of the run. Default on the command line: a new one under `runs/`.",
    "run.engine": "`local`: one client after the other. `stacked`: many clients and runs in one program. `flower`: "
    "real processes, on this machine as a trial. `flower-simulation`: Flower's own simulation.",
    "run.clients": "Flower: the data holders' names, in their order. Part of the plan.",
    "run.min_clients": "Flower: how many clients must be there to begin, and train in every round. Default: all to "
    "begin, then at least one.",
    "run.wait": "Flower: how many seconds to wait for them. Then the run stops, and can be continued.",
    "run.deadline": "Flower: how many seconds a client has to reply. Later clients are dropped from the round.",
    "run.dtype": "Floating-point type of the model.",
    "run.evaluate_every": "Rounds between two lines of the history.",
}
