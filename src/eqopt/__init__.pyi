from . import (
    aggregating as aggregating,
    assignment as assignment,
    checkpoint as checkpoint,
    compression as compression,
    config as config,
    groups as groups,
    interop as interop,
    linear_algebra as linear_algebra,
    losses as losses,
    microbatching as microbatching,
    monte_carlo as monte_carlo,
    numerics as numerics,
    perturbations as perturbations,
    plot as plot,
    projections as projections,
    schedules as schedules,
    second_order as second_order,
    storage as storage,
    testing as testing,
    transfer as transfer,
    tree as tree,
)
from ._combinators.chain import (
    Chain as Chain,
    NamedChain as NamedChain,
)
from ._combinators.masked import (
    Freeze as Freeze,
    Masked as Masked,
    MaskedState as MaskedState,
    SelectiveTransform as SelectiveTransform,
    SelectiveTransformState as SelectiveTransformState,
)
from ._combinators.partition import (
    Partition as Partition,
    PartitionState as PartitionState,
)
from ._core.apply import (
    apply_updates as apply_updates,
    incremental_update as incremental_update,
    periodic_update as periodic_update,
)
from ._core.equation import equation as equation
from ._core.leafwise import Leafwise as Leafwise, leafwise as leafwise
from ._core.reductions import sum_over_leaves as sum_over_leaves
from ._core.transformation import (
    AbstractLeafwise as AbstractLeafwise,
    AbstractOptimizer as AbstractOptimizer,
    AbstractStateless as AbstractStateless,
    AbstractTransformation as AbstractTransformation,
)
from ._core.wrapper import (
    AbstractComposite as AbstractComposite,
    AbstractWrapper as AbstractWrapper,
    Call as Call,
)
from ._linesearch.backtracking import (
    BacktrackingLinesearchInfo as BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearch as ScaleByBacktrackingLinesearch,
    ScaleByBacktrackingLinesearchState as ScaleByBacktrackingLinesearchState,
)
from ._linesearch.value_and_grad import (
    value_and_grad_from_state as value_and_grad_from_state,
)
from ._linesearch.zoom import (
    ScaleByZoomLinesearch as ScaleByZoomLinesearch,
    ScaleByZoomLinesearchState as ScaleByZoomLinesearchState,
    ZoomLinesearchInfo as ZoomLinesearchInfo,
)
from ._matrices.dimension_numbers import (
    MatrixDimensionNumbers as MatrixDimensionNumbers,
)
from ._matrices.matrixwise import AbstractMatrixwise as AbstractMatrixwise
from ._optimizers.adam.acprop import (
    ACProp as ACProp,
    ScaleByACProp as ScaleByACProp,
    ScaleByACPropState as ScaleByACPropState,
)
from ._optimizers.adam.adabelief import (
    AdaBelief as AdaBelief,
    ScaleByBelief as ScaleByBelief,
    ScaleByBeliefState as ScaleByBeliefState,
)
from ._optimizers.adam.adam import (
    Adam as Adam,
    AdamW as AdamW,
    NAdam as NAdam,
    NAdamW as NAdamW,
    ScaleByAdam as ScaleByAdam,
    ScaleByAdamState as ScaleByAdamState,
)
from ._optimizers.adam.adam_mini import (
    AdamMini as AdamMini,
    ScaleByAdamMini as ScaleByAdamMini,
    ScaleByAdamMiniState as ScaleByAdamMiniState,
)
from ._optimizers.adam.adamax import (
    Adamax as Adamax,
    AdamaxW as AdamaxW,
    ScaleByAdamax as ScaleByAdamax,
    ScaleByAdamaxState as ScaleByAdamaxState,
)
from ._optimizers.adam.adan import (
    Adan as Adan,
    ScaleByAdan as ScaleByAdan,
    ScaleByAdanState as ScaleByAdanState,
)
from ._optimizers.adam.ademamix import (
    AdEMAMix as AdEMAMix,
    ScaleByAdEMAMix as ScaleByAdEMAMix,
    ScaleByAdEMAMixState as ScaleByAdEMAMixState,
)
from ._optimizers.adam.adopt import (
    ADOPT as ADOPT,
    ScaleByADOPT as ScaleByADOPT,
    ScaleByADOPTState as ScaleByADOPTState,
)
from ._optimizers.adam.amsgrad import (
    AMSGrad as AMSGrad,
    ScaleByAMSGrad as ScaleByAMSGrad,
    ScaleByAMSGradState as ScaleByAMSGradState,
)
from ._optimizers.adam.grams import (
    Grams as Grams,
    ScaleByGrams as ScaleByGrams,
    ScaleByGramsState as ScaleByGramsState,
)
from ._optimizers.adam.laprop import (
    LaProp as LaProp,
    ScaleByLaProp as ScaleByLaProp,
    ScaleByLaPropState as ScaleByLaPropState,
)
from ._optimizers.adam.optimistic_adam import (
    OptimisticAdam as OptimisticAdam,
)
from ._optimizers.adam.radam import (
    RAdam as RAdam,
    ScaleByRAdam as ScaleByRAdam,
    ScaleByRAdamState as ScaleByRAdamState,
)
from ._optimizers.adam.simplified_ademamix import (
    ScaleBySimplifiedAdEMAMix as ScaleBySimplifiedAdEMAMix,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
    SimplifiedAdEMAMix as SimplifiedAdEMAMix,
)
from ._optimizers.adam.stable_adamw import (
    ScaleByStableAdam as ScaleByStableAdam,
    ScaleByStableAdamState as ScaleByStableAdamState,
    StableAdamW as StableAdamW,
)
from ._optimizers.adam.stable_spam import (
    ScaleByAdamWithReset as ScaleByAdamWithReset,
    ScaleByAdamWithResetState as ScaleByAdamWithResetState,
    StableSPAM as StableSPAM,
)
from ._optimizers.adam.yogi import (
    ScaleByYogi as ScaleByYogi,
    ScaleByYogiState as ScaleByYogiState,
    Yogi as Yogi,
)
from ._optimizers.adaptive.adadelta import (
    Adadelta as Adadelta,
    ScaleByAdadelta as ScaleByAdadelta,
    ScaleByAdadeltaState as ScaleByAdadeltaState,
)
from ._optimizers.adaptive.adagrad import (
    Adagrad as Adagrad,
    ScaleByRSS as ScaleByRSS,
    ScaleByRSSState as ScaleByRSSState,
)
from ._optimizers.adaptive.madgrad import (
    MADGRAD as MADGRAD,
    ScaleByMADGRAD as ScaleByMADGRAD,
    ScaleByMADGRADState as ScaleByMADGRADState,
)
from ._optimizers.adaptive.rmsprop import (
    RMSprop as RMSprop,
    ScaleByRMS as ScaleByRMS,
    ScaleByRMSState as ScaleByRMSState,
    ScaleByStddev as ScaleByStddev,
    ScaleByStddevState as ScaleByStddevState,
)
from ._optimizers.adaptive.sm3 import (
    SM3 as SM3,
    ScaleBySM3 as ScaleBySM3,
    ScaleBySM3State as ScaleBySM3State,
)
from ._optimizers.layerwise.adafactor import (
    Adafactor as Adafactor,
)
from ._optimizers.layerwise.adamp import (
    AdamP as AdamP,
    ScaleByAdamP as ScaleByAdamP,
    ScaleByAdamPState as ScaleByAdamPState,
)
from ._optimizers.layerwise.came import (
    CAME as CAME,
    ScaleByCAME as ScaleByCAME,
    ScaleByCAMEState as ScaleByCAMEState,
)
from ._optimizers.layerwise.fromage import (
    Fromage as Fromage,
)
from ._optimizers.layerwise.lamb import (
    LAMB as LAMB,
)
from ._optimizers.layerwise.lars import (
    LARS as LARS,
)
from ._optimizers.layerwise.novograd import (
    NovoGrad as NovoGrad,
    ScaleByNovoGrad as ScaleByNovoGrad,
    ScaleByNovoGradState as ScaleByNovoGradState,
)
from ._optimizers.layerwise.sgdp import (
    SGDP as SGDP,
    ScaleBySGDP as ScaleBySGDP,
    ScaleBySGDPState as ScaleBySGDPState,
)
from ._optimizers.matrix.adamuon import (
    AdaMuon as AdaMuon,
    ScaleByAdaMuon as ScaleByAdaMuon,
    ScaleByAdaMuonState as ScaleByAdaMuonState,
)
from ._optimizers.matrix.apollo import (
    APOLLO as APOLLO,
    ScaleByAPOLLO as ScaleByAPOLLO,
    ScaleByAPOLLOState as ScaleByAPOLLOState,
)
from ._optimizers.matrix.aurora import (
    Aurora as Aurora,
    ScaleByAurora as ScaleByAurora,
    ScaleByAuroraState as ScaleByAuroraState,
)
from ._optimizers.matrix.dion2 import (
    Dion2 as Dion2,
    ScaleByDion2 as ScaleByDion2,
    ScaleByDion2State as ScaleByDion2State,
)
from ._optimizers.matrix.galore import (
    GaLore as GaLore,
    ScaleByGaLore as ScaleByGaLore,
    ScaleByGaLoreState as ScaleByGaLoreState,
)
from ._optimizers.matrix.hyperball import (
    Hyperball as Hyperball,
    KeepNorm as KeepNorm,
    KeepNormState as KeepNormState,
    RadialBrake as RadialBrake,
    RelativeUpdate as RelativeUpdate,
    UpdateNormFloor as UpdateNormFloor,
)
from ._optimizers.matrix.mars import (
    MARS as MARS,
    CorrectByMARS as CorrectByMARS,
    CorrectByMARSState as CorrectByMARSState,
)
from ._optimizers.matrix.moso import (
    MOSO as MOSO,
    ScaleByMOSO as ScaleByMOSO,
    ScaleByMOSOState as ScaleByMOSOState,
)
from ._optimizers.matrix.muon import (
    Muon as Muon,
    ScaleByMuon as ScaleByMuon,
    ScaleByMuonState as ScaleByMuonState,
)
from ._optimizers.matrix.muown import (
    Muown as Muown,
    ScaleByMuown as ScaleByMuown,
    ScaleByMuownState as ScaleByMuownState,
)
from ._optimizers.matrix.namo import (
    NAMO as NAMO,
    ScaleByNAMO as ScaleByNAMO,
    ScaleByNAMOState as ScaleByNAMOState,
)
from ._optimizers.matrix.normuon import (
    NorMuon as NorMuon,
    ScaleByNorMuon as ScaleByNorMuon,
    ScaleByNorMuonState as ScaleByNorMuonState,
    ScaleByRowRMS as ScaleByRowRMS,
    ScaleByRowRMSState as ScaleByRowRMSState,
)
from ._optimizers.matrix.orthogonalize import (
    Orthogonalize as Orthogonalize,
)
from ._optimizers.matrix.psgd import (
    PSGDKron as PSGDKron,
    ScaleByPSGDKron as ScaleByPSGDKron,
    ScaleByPSGDKronState as ScaleByPSGDKronState,
)
from ._optimizers.matrix.scion import (
    ScaleByLMO as ScaleByLMO,
    ScaleByLMOState as ScaleByLMOState,
    Scion as Scion,
)
from ._optimizers.matrix.shampoo import (
    KLShampoo as KLShampoo,
    ScaleByShampoo as ScaleByShampoo,
    ScaleByShampooState as ScaleByShampooState,
    Shampoo as Shampoo,
)
from ._optimizers.matrix.soap import (
    SOAP as SOAP,
    ScaleBySOAP as ScaleBySOAP,
    ScaleBySOAPState as ScaleBySOAPState,
    SOAPMuon as SOAPMuon,
)
from ._optimizers.matrix.stateless import (
    SCALE as SCALE,
    ScaleByRowNorm as ScaleByRowNorm,
    ScaleBySinkhorn as ScaleBySinkhorn,
    ScaleBySinkhornState as ScaleBySinkhornState,
    SinkGD as SinkGD,
)
from ._optimizers.parameter_free.cocob import (
    COCOB as COCOB,
    ScaleByCOCOB as ScaleByCOCOB,
    ScaleByCOCOBState as ScaleByCOCOBState,
)
from ._optimizers.parameter_free.dadapt_adamw import (
    DAdaptAdamW as DAdaptAdamW,
    DAdaptAdamWState as DAdaptAdamWState,
)
from ._optimizers.parameter_free.dog import (
    DoG as DoG,
    DoGState as DoGState,
    DoWG as DoWG,
    DoWGState as DoWGState,
)
from ._optimizers.parameter_free.prodigy import (
    Prodigy as Prodigy,
    ProdigyState as ProdigyState,
)
from ._optimizers.polyak.momo import (
    MoMo as MoMo,
    MoMoAdam as MoMoAdam,
    MoMoAdamState as MoMoAdamState,
    MoMoState as MoMoState,
)
from ._optimizers.polyak.polyak import (
    PolyakSGD as PolyakSGD,
    ScaleByPolyak as ScaleByPolyak,
    ScaleByPolyakState as ScaleByPolyakState,
)
from ._optimizers.schedule_free.plus import (
    ScheduleFreePlus as ScheduleFreePlus,
    ScheduleFreePlusState as ScheduleFreePlusState,
)
from ._optimizers.schedule_free.schedule_free import (
    ScheduleFreeAdamW as ScheduleFreeAdamW,
    ScheduleFreeSGD as ScheduleFreeSGD,
)
from ._optimizers.second_order.lbfgs import (
    LBFGS as LBFGS,
    ScaleByLBFGS as ScaleByLBFGS,
    ScaleByLBFGSState as ScaleByLBFGSState,
)
from ._optimizers.second_order.projected_lbfgs import (
    ProjectedLBFGS as ProjectedLBFGS,
    ProjectedLBFGSState as ProjectedLBFGSState,
)
from ._optimizers.second_order.sophia import (
    Sophia as Sophia,
    SophiaState as SophiaState,
)
from ._optimizers.sgd.dpsgd import (
    DPSGD as DPSGD,
)
from ._optimizers.sgd.noisy_sgd import (
    NoisySGD as NoisySGD,
)
from ._optimizers.sgd.optimistic import (
    OptimisticGradientDescent as OptimisticGradientDescent,
    ScaleByOptimisticGradient as ScaleByOptimisticGradient,
    ScaleByOptimisticGradientState as ScaleByOptimisticGradientState,
)
from ._optimizers.sgd.sgd import (
    SGD as SGD,
)
from ._optimizers.sign.lion import (
    Lion as Lion,
    ScaleByLion as ScaleByLion,
    ScaleByLionState as ScaleByLionState,
)
from ._optimizers.sign.rprop import (
    Rprop as Rprop,
    ScaleByRprop as ScaleByRprop,
    ScaleByRpropState as ScaleByRpropState,
)
from ._optimizers.sign.sign import (
    ScaleBySign as ScaleBySign,
    SignSGD as SignSGD,
    Signum as Signum,
)
from ._transforms.adaptive_clip import (
    AdaptiveGradClip as AdaptiveGradClip,
    unitwise_clip as unitwise_clip,
    unitwise_norm as unitwise_norm,
)
from ._transforms.block import (
    AdaClipGN as AdaClipGN,
    AdaClipGNState as AdaClipGNState,
    ClipByBlockRMS as ClipByBlockRMS,
    ScaleByDistanceOverGradients as ScaleByDistanceOverGradients,
    ScaleByDistanceOverGradientsState as ScaleByDistanceOverGradientsState,
    ScaleByParamBlockNorm as ScaleByParamBlockNorm,
    ScaleByParamBlockRMS as ScaleByParamBlockRMS,
    ScaleByTrustRatio as ScaleByTrustRatio,
)
from ._transforms.clip import (
    Clip as Clip,
    ClipByGlobalNorm as ClipByGlobalNorm,
    ClipByHistory as ClipByHistory,
    ClipByHistoryState as ClipByHistoryState,
)
from ._transforms.constraints import (
    KeepParamsNonnegative as KeepParamsNonnegative,
    Overwrite as Overwrite,
    ZeroNaNs as ZeroNaNs,
    ZeroNaNsState as ZeroNaNsState,
)
from ._transforms.factored_rms import (
    ScaleByFactoredRMS as ScaleByFactoredRMS,
    ScaleByFactoredRMSState as ScaleByFactoredRMSState,
)
from ._transforms.hutchinson import (
    HutchinsonDiagHessian as HutchinsonDiagHessian,
    HutchinsonDiagHessianState as HutchinsonDiagHessianState,
)
from ._transforms.monitoring import (
    MeasureWithEMA as MeasureWithEMA,
    Monitor as Monitor,
    MonitorState as MonitorState,
    Snapshot as Snapshot,
    SnapshotState as SnapshotState,
)
from ._transforms.noise import (
    AddCorrelatedNoise as AddCorrelatedNoise,
    AddCorrelatedNoiseState as AddCorrelatedNoiseState,
    AddNoise as AddNoise,
    AddNoiseState as AddNoiseState,
    correlated_noise_sensitivity as correlated_noise_sensitivity,
    square_root_coefficients as square_root_coefficients,
)
from ._transforms.normalize import (
    Centralize as Centralize,
    Normalize as Normalize,
    NormalizeByUpdateNorm as NormalizeByUpdateNorm,
)
from ._transforms.privacy import (
    DifferentiallyPrivateAggregate as DifferentiallyPrivateAggregate,
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
)
from ._transforms.qk_clip import QKClip as QKClip
from ._transforms.scale import (
    Identity as Identity,
    ReduceLROnPlateau as ReduceLROnPlateau,
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    Scale as Scale,
    ScaleByLearningRate as ScaleByLearningRate,
    ScaleByLearningRateState as ScaleByLearningRateState,
    ScaleBySchedule as ScaleBySchedule,
    ScaleByScheduleState as ScaleByScheduleState,
    ScaleByTree as ScaleByTree,
    SetToZero as SetToZero,
)
from ._transforms.stateless import (
    Stateless as Stateless,
    StatelessWithTreeMap as StatelessWithTreeMap,
)
from ._transforms.trace import (
    EMA as EMA,
    ApplyEvery as ApplyEvery,
    ApplyEveryState as ApplyEveryState,
    EMAState as EMAState,
    Grokfast as Grokfast,
    GrokfastState as GrokfastState,
    Trace as Trace,
    TraceState as TraceState,
)
from ._transforms.weight_decay import (
    AddDecayedWeights as AddDecayedWeights,
    AddDecayedWeightsState as AddDecayedWeightsState,
)
from ._types import (
    Hyperparameter as Hyperparameter,
    Mask as Mask,
    Params as Params,
    Positive as Positive,
    ScalarOrSchedule as ScalarOrSchedule,
    State as State,
    Unit as Unit,
    Updates as Updates,
    ZeroOrMore as ZeroOrMore,
)
from ._wrappers.averages.diloco import DiLoCo as DiLoCo, DiLoCoState as DiLoCoState
from ._wrappers.averages.gradient_points import (
    GPA as GPA,
    EMANesterov as EMANesterov,
    EMANesterovState as EMANesterovState,
    GPAState as GPAState,
    ScheduleFree as ScheduleFree,
    ScheduleFreeState as ScheduleFreeState,
)
from ._wrappers.averages.param_averages import (
    SWA as SWA,
    ParamEMA as ParamEMA,
    ParamEMAState as ParamEMAState,
    SWAState as SWAState,
)
from ._wrappers.averages.slow_weights import (
    Lookahead as Lookahead,
    LookaheadParams as LookaheadParams,
    LookaheadState as LookaheadState,
    OuterNesterov as OuterNesterov,
    OuterNesterovState as OuterNesterovState,
)
from ._wrappers.cautious import Cautious as Cautious
from ._wrappers.complex_valued import (
    SplitRealAndImaginary as SplitRealAndImaginary,
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
)
from ._wrappers.compressed_mean import (
    CompressedMean as CompressedMean,
    CompressedMeanState as CompressedMeanState,
)
from ._wrappers.distribute_matrices import DistributeMatrices as DistributeMatrices
from ._wrappers.flatten import (
    Flatten as Flatten,
    FlattenState as FlattenState,
)
from ._wrappers.loss_scale import (
    DynamicLossScale as DynamicLossScale,
    DynamicLossScaleState as DynamicLossScaleState,
)
from ._wrappers.mechanic import (
    Mechanic as Mechanic,
    MechanicState as MechanicState,
)
from ._wrappers.multi_steps import (
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
)
from ._wrappers.offload import (
    Offload as Offload,
    OffloadState as OffloadState,
)
from ._wrappers.project import (
    Project as Project,
    ProjectState as ProjectState,
)
from ._wrappers.record_grad_norm import (
    RecordGradNorm as RecordGradNorm,
    RecordGradNormState as RecordGradNormState,
)
from ._wrappers.sam import (
    SAM as SAM,
    SAMState as SAMState,
)
from ._wrappers.scheduled import (
    Scheduled as Scheduled,
    ScheduledState as ScheduledState,
)
from ._wrappers.skip_step import (
    AbstractSkipRule as AbstractSkipRule,
    ApplyIfFinite as ApplyIfFinite,
    ApplyIfFiniteState as ApplyIfFiniteState,
    ConditionallyMask as ConditionallyMask,
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransform as ConditionallyTransform,
    ConditionallyTransformState as ConditionallyTransformState,
    SigmaRule as SigmaRule,
    SigmaRuleState as SigmaRuleState,
    SkipLargeUpdates as SkipLargeUpdates,
    SkipNotFinite as SkipNotFinite,
    SkipStep as SkipStep,
    SkipStepState as SkipStepState,
)
from ._wrappers.soda import (
    SODA as SODA,
    SODAState as SODAState,
)
from ._wrappers.store import (
    StoreParams as StoreParams,
    StoreParamsState as StoreParamsState,
    StoreState as StoreState,
    StoreStateState as StoreStateState,
)
from ._wrappers.zero1 import (
    ZeRO1 as ZeRO1,
    ZeRO1State as ZeRO1State,
)
