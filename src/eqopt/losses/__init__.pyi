from ._ctc import (
    ctc_loss as ctc_loss,
    ctc_loss_with_forward_probs as ctc_loss_with_forward_probs,
)
from ._distributions import (
    generalized_kl_divergence as generalized_kl_divergence,
    kl_divergence as kl_divergence,
    kl_divergence_with_log_targets as kl_divergence_with_log_targets,
    poly_loss_cross_entropy as poly_loss_cross_entropy,
    ranking_softmax_loss as ranking_softmax_loss,
    safe_softmax_cross_entropy as safe_softmax_cross_entropy,
    smooth_labels as smooth_labels,
    softmax_cross_entropy as softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,  # noqa: E501
)
from ._elementwise import (
    hinge_loss as hinge_loss,
    huber_loss as huber_loss,
    l2_loss as l2_loss,
    log_cosh as log_cosh,
    perceptron_loss as perceptron_loss,
    sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy,
    sigmoid_focal_loss as sigmoid_focal_loss,
    sparsemax_loss as sparsemax_loss,
    squared_error as squared_error,
)
from ._embeddings import (
    cosine_distance as cosine_distance,
    cosine_similarity as cosine_similarity,
    ntxent as ntxent,
    triplet_margin_loss as triplet_margin_loss,
)
from ._margins import (
    make_fenchel_young_loss as make_fenchel_young_loss,
    multiclass_hinge_loss as multiclass_hinge_loss,
    multiclass_perceptron_loss as multiclass_perceptron_loss,
    multiclass_sparsemax_loss as multiclass_sparsemax_loss,
)
from ._segmentation import (
    binary_dice_loss as binary_dice_loss,
    dice_loss as dice_loss,
    multiclass_generalized_dice_loss as multiclass_generalized_dice_loss,
)
