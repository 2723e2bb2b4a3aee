"""DeepSeek-V2 and V2-Lite: latent attention; a softmax chooses experts."""

from snapexport.exporter.architectures.architecture import Architecture, Experts

ARCHITECTURE = Architecture(
    name="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    latent=True,
    experts=Experts(dense="first_k_dense_replace", grouped="by topk_method"),
)
