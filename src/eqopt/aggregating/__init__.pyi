from ._average import (
    AbstractAggregator as AbstractAggregator,
    AccumulateAvgUpdates as AccumulateAvgUpdates,
    AccumulateAvgUpdatesState as AccumulateAvgUpdatesState,
    AverageIncrementallyUpdates as AverageIncrementallyUpdates,
    AveragePerElementUpdates as AveragePerElementUpdates,
    PerElementMeanAndSumSqDiffGrads as PerElementMeanAndSumSqDiffGrads,
    PerElementMeanAndSumSqDiffGradsState as PerElementMeanAndSumSqDiffGradsState,
    get_batch_size_from_per_elt_updates as get_batch_size_from_per_elt_updates,
)
from ._noise_scale import (
    GradientNoiseScale as GradientNoiseScale,
    gradient_noise_scale as gradient_noise_scale,
)
from ._process import (
    PerElementMeanAndVarianceEMAState as PerElementMeanAndVarianceEMAState,
    Process as Process,
    TrackPerElementMeanAndVarianceWithEMA as TrackPerElementMeanAndVarianceWithEMA,
    add_mean_variance_to_opt as add_mean_variance_to_opt,
    get_unbiased_mean_and_variance_ema as get_unbiased_mean_and_variance_ema,
)
