from ._control_variates import (
    MovingAvgBaselineState as MovingAvgBaselineState,
    control_delta_method as control_delta_method,
    control_variates_jacobians as control_variates_jacobians,
    estimate_control_variate_coefficients as estimate_control_variate_coefficients,
    moving_avg_baseline as moving_avg_baseline,
)
from ._estimators import (
    AbstractDistribution as AbstractDistribution,
    MultiNormalDiag as MultiNormalDiag,
    measure_valued_estimation_mean as measure_valued_estimation_mean,
    measure_valued_estimation_std as measure_valued_estimation_std,
    measure_valued_jacobians as measure_valued_jacobians,
    pathwise_jacobians as pathwise_jacobians,
    score_function_jacobians as score_function_jacobians,
)
