"""Keys that trainers' files can have: to tell a slip of the pen from a setting.

Names are those of LLaMA-Factory's argument classes (0.9), of Seq2SeqTrainingArguments (transformers
4.40 to 5.24) and of PEFT's LoraConfig (0.21). LLaMA-Factory refuses a key it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

MODEL = """
model_name_or_path adapter_name_or_path adapter_folder cache_dir use_fast_tokenizer resize_vocab
split_special_tokens add_tokens add_special_tokens new_special_tokens new_special_tokens_config
init_special_tokens model_revision low_cpu_mem_usage rope_scaling flash_attn shift_attn
mixture_of_depths use_unsloth use_unsloth_gc enable_liger_kernel moe_aux_loss_coef
disable_gradient_checkpointing use_reentrant_gc upcast_layernorm upcast_lmhead_output
train_from_scratch infer_backend offload_folder use_cache use_kv_cache use_v1_kernels infer_dtype
hf_hub_token ms_hub_token om_hub_token print_param_status trust_remote_code quantization_method
quantization_bit quantization_type double_quantization quantization_device_map image_max_pixels
image_min_pixels image_do_pan_and_scan crop_to_patches use_audio_in_video video_max_pixels
video_min_pixels video_fps video_maxlen audio_sampling_rate image_resolution video_resolution
export_dir export_size export_device export_quantization_bit export_quantization_dataset
export_quantization_nsamples export_quantization_maxlen export_legacy_format export_hub_model_id
vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config sglang_maxlen
sglang_mem_fraction sglang_tp_size sglang_config sglang_lora_backend use_kt kt_optimize_rule
cpu_infer chunk_size mode kt_maxlen kt_use_cuda_graph kt_mode kt_force_think fp8 fp8_backend
fp8_enable_fsdp_float8_all_gather
"""
DATA = """
template dataset eval_dataset dataset_dir media_dir cutoff_len train_on_prompt mask_history
streaming buffer_size mix_strategy interleave_probs overwrite_cache preprocessing_batch_size
preprocessing_num_workers max_samples eval_num_beams ignore_pad_token_for_loss val_size
eval_on_each_dataset packing neat_packing tool_format default_system enable_thinking
tokenized_path data_shared_file_system
"""
FINETUNING = """
stage finetuning_type pure_bf16 use_llama_pro use_adam_mini use_muon use_mca use_dft_loss
use_asft_loss asft_alpha use_eaft_loss eaft_alpha freeze_vision_tower freeze_multi_modal_projector
freeze_language_model train_mm_proj_only compute_accuracy disable_shuffling early_stopping_steps
plot_loss include_effective_tokens_per_second freeze_trainable_layers freeze_trainable_modules
freeze_extra_modules additional_target module_dropout lora_alpha lora_dropout lora_rank
lora_target loraplus_lr_ratio loraplus_lr_embedding use_rslora use_dora pissa_init pissa_iter
pissa_convert create_new_adapter oft_rank oft_block_size oft_target pref_beta pref_ftx pref_loss
pref_bco_weight dpo_label_smoothing ld_alpha kto_chosen_weight kto_rejected_weight simpo_gamma
ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model
ref_model_adapters ref_model_quantization_bit reward_model reward_model_adapters
reward_model_quantization_bit reward_model_type use_galore galore_target galore_rank
galore_update_interval galore_scale galore_proj_type galore_layerwise use_apollo apollo_target
apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type
apollo_layerwise apollo_scale_front use_badam badam_mode badam_start_block badam_switch_mode
badam_switch_interval badam_update_ratio badam_mask_mode badam_verbose use_swanlab
swanlab_project swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir
swanlab_lark_webhook_url swanlab_lark_secret
"""
GENERATING = """
do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty
length_penalty skip_special_tokens system_message
"""
TRAINING = """
accelerator_config activation_checkpointing activation_checkpointing_kwargs adafactor adam_beta1
adam_beta2 adam_epsilon auto_find_batch_size average_tokens_across_devices batch_eval_metrics
bf16 bf16_full_eval data_seed dataloader_drop_last dataloader_in_order
dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers
ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed
disable_tqdm do_eval do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay
eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object
evaluation_strategy fp16 fp16_backend fp16_full_eval fp16_opt_level fsdp fsdp_config
fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap full_determinism generation_config
generation_max_length generation_num_beams gradient_accumulation_steps gradient_checkpointing
gradient_checkpointing_kwargs greater_is_better group_by_length half_precision_backend
hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip
include_for_metrics include_inputs_for_metrics include_num_input_tokens_seen
include_tokens_per_second jit_mode_eval label_names label_smoothing_factor learning_rate
length_column_name liger_kernel_config load_best_model_at_end local_rank log_level
log_level_replica log_on_each_node logging_dir logging_first_step logging_nan_inf_filter
logging_steps logging_strategy lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps
metric_for_best_model mp_parameters neftune_noise_alpha no_cuda num_train_epochs optim optim_args
optim_target_modules output_dir overwrite_output_dir parallelism_config past_index
per_device_eval_batch_size per_device_train_batch_size per_gpu_eval_batch_size
per_gpu_train_batch_size placement_strategy predict_with_generate prediction_loss_only project
push_to_hub push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_init_kwargs
ray_num_workers ray_run_name ray_scope ray_storage_filesystem ray_storage_path remove_unused_columns
report_to resources_per_worker restore_callback_states_from_checkpoint resume_from_checkpoint
run_name save_on_each_node save_only_model save_safetensors save_steps save_strategy
save_total_limit seed skip_memory_metrics sortish_sampler split_batches tf32 torch_compile
torch_compile_backend torch_compile_mode torch_empty_cache_steps torchdynamo tp_size
trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy tpu_metrics_debug
tpu_num_cores use_cpu use_ipex use_legacy_prediction_loop use_liger_kernel use_mps_device
warmup_ratio warmup_steps weight_decay
"""
# Of llamafactory-cli eval.
EVALUATION = "task task_dir lang n_shot save_dir download_mode"
PEFT = """
task_type peft_type auto_mapping peft_version base_model_name_or_path revision inference_mode r
target_modules exclude_modules lora_alpha lora_dropout fan_in_fan_out bias use_rslora
modules_to_save init_lora_weights layers_to_transform layers_pattern rank_pattern alpha_pattern
megatron_config megatron_core trainable_token_indices loftq_config eva_config corda_config
lora_ga_config use_dora velora_config alora_invocation_tokens use_qalora qalora_group_size
monteclora_config layer_replication runtime_config lora_bias target_parameters use_bdlora
arrow_config kasa_config ensure_weight_tying
"""

_TRAINING = frozenset(TRAINING.split())
LLAMAFACTORY = (
    frozenset(MODEL.split())
    | frozenset(DATA.split())
    | frozenset(FINETUNING.split())
    | frozenset(GENERATING.split())
    | frozenset(EVALUATION.split())
    | _TRAINING
)
KNOWN: dict[str, frozenset[str]] = {
    "llamafactory": LLAMAFACTORY,
    "peft": frozenset(PEFT.split()),
    # Scripts add keys of their own to transformers' and PEFT's.
    "transformers": _TRAINING | frozenset(PEFT.split()),
}
# Keys that are no slip are compared with the known ones at 0.8 ms each.
MAX_COMPARED = 50

# What other trainers call it -> LLaMA-Factory's name.
ELSEWHERE = {
    "lora_r": "lora_rank",
    "r": "lora_rank",
    "target_modules": "lora_target",
    "lora_target_modules": "lora_target",
    "lora_modules": "lora_target",
    "modules_to_save": "additional_target",
    "max_seq_length": "cutoff_len",
    "max_seq_len": "cutoff_len",
    "sequence_len": "cutoff_len",
    "micro_batch_size": "per_device_train_batch_size",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
    "epochs": "num_train_epochs",
    "lr": "learning_rate",
    "base_model": "model_name_or_path",
    "model": "model_name_or_path",
    "model_name": "model_name_or_path",
    "load_in_4bit": "quantization_bit: 4",
    "load_in_8bit": "quantization_bit: 8",
    "optimizer": "optim",
    "lr_scheduler": "lr_scheduler_type",
    "scheduler": "lr_scheduler_type",
}


def near(key: str, known: frozenset[str]) -> str | None:
    """The known key that a slip of the pen would make into `key`."""
    plain = key.lower().replace("-", "_").strip("_ ")
    if plain in known:
        return plain
    close = get_close_matches(plain, known, n=1, cutoff=0.88)
    # per_device_eval_x beside per_device_train_x: another word is no slip.
    if not close or abs(len(close[0]) - len(plain)) > 2:
        return None
    return close[0]


def is_trainers(keys: Iterable[object]) -> bool:
    """Whether one of the keys is a trainer's setting, or a slip of the pen away from one."""
    known = LLAMAFACTORY | KNOWN["peft"] | ELSEWHERE.keys() | {"adapter", "lora_target_modules"}
    texts = [k for k in keys if isinstance(k, str) and len(k) <= 80]
    return any(k in known for k in texts) or any(
        near(k, known) is not None for k in islice(texts, MAX_COMPARED)
    )
