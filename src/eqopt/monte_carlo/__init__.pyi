from ._control_variates import (
    control_variates_jacobians as control_variates_jacobians,
    estimate_control_variate_coefficients as estimate_control_variate_coefficients,
)
from ._delta_method import control_delta_method as control_delta_method
from ._distribution import (
    AbstractDistribution as AbstractDistribution,
    MultiNormalDiag as MultiNormalDiag,
)
from ._estimators import (
    pathwise_jacobians as pathwise_jacobians,
    score_function_jacobians as score_function_jacobians,
)
from ._measure_valued import (
    measure_valued_estimation_mean as measure_valued_estimation_mean,
    measure_valued_estimation_std as measure_valued_estimation_std,
    measure_valued_jacobians as measure_valued_jacobians,
)
from ._moving_average import (
    MovingAvgBaselineState as MovingAvgBaselineState,
    moving_avg_baseline as moving_avg_baseline,
)
