#include "tensorrt/select_plugin.h"

#include <new>
#include <stdexcept>

#include "launchers/select.h"

namespace snapexport {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

SelectAttributes::SelectAttributes(const nvinfer1::PluginFieldCollection* fields) {
  const snapexport::Attributes given(fields, {"L_sink", "L_recent", "K", "pool_kernel", "scale",
                                              "softcap", "softmax", "vote", "pool", "group"});
  sink = given.integer("L_sink");
  recent = given.integer("L_recent");
  K = given.integer("K");
  const auto kernel = given.integers("pool_kernel", 2);
  pool_kernel = {kernel[0], kernel[1]};
  scale = given.real("scale");
  softcap = given.real("softcap");
  softmax = given.word("softmax", {"candidates", "causal"});
  vote = given.word("vote", {"sum", "sum-squares"});
  pool = given.word("pool", {"avg", "max"});
  group = given.word("group", {"mean", "max", "sum"});

  const auto require = [](bool met, const char* what) {
    if (!met) throw std::invalid_argument(what);
  };
  require(sink >= 0, "attribute 'L_sink' is below 0");
  require(recent >= 1, "attribute 'L_recent' is below 1");
  require(K >= 1, "attribute 'K' is below 1");
  require(pool_kernel[0] == 1 && pool_kernel[1] >= 1, "attribute 'pool_kernel' is not [1, P]");
  require(scale > 0, "attribute 'scale' is not above 0");
  require(softcap >= 0, "attribute 'softcap' is below 0");
}

SelectProblem SelectPlugin::problem(const nvinfer1::Dims& query, const nvinfer1::Dims& key) const {
  const SelectAttributes& a = attributes_;
  SelectProblem p{};
  p.kv_heads = static_cast<int32_t>(key.d[1]);
  p.group = static_cast<int32_t>(query.d[1] / key.d[1]);
  p.window = static_cast<int32_t>(query.d[2]);
  p.T = static_cast<int32_t>(key.d[2]);
  p.head_dim = static_cast<int32_t>(key.d[3]);
  p.sink = a.sink;
  p.recent = a.recent;
  p.K = a.K;
  p.pool_kernel = a.pool_kernel[1];
  p.scale = a.scale;
  p.softcap = a.softcap;
  p.causal = a.softmax == "causal";
  p.squares = a.vote == "sum-squares";
  p.pool_max = a.pool == "max";
  p.group_max = a.group == "max";
  return p;
}

std::string SelectPlugin::refusal(const nvinfer1::PluginTensorDesc* in) const {
  const nvinfer1::Dims &query = in[0].dims, &key = in[1].dims, &length = in[2].dims;
  ElementType type;
  if (!element_type(in[0].type, &type)) return "queries must be float32, float16 or bfloat16";
  if (in[1].type != in[0].type) return "queries and keys differ in type";
  if (in[2].type != nvinfer1::DataType::kINT64) return "prompt_length must be int64";
  if (!is_static(query, 4)) return "query_window is " + written(query) + ", not [1, H, W, D]";
  if (!is_static(key, 4)) return "key is " + written(key) + ", not [1, Hkv, T, D]";
  if (!is_static(length, 1)) return "prompt_length is " + written(length) + ", not [1]";
  if (key.d[1] < 1 || query.d[1] % key.d[1] != 0 || query.d[3] != key.d[3]) {
    return "queries " + written(query) + " and keys " + written(key) + " do not go together";
  }
  return snapexport::refusal(problem(query, key), type);
}

nvinfer1::IPluginV3* SelectPlugin::clone() noexcept {
  return new (std::nothrow) SelectPlugin(attributes_);
}

int32_t SelectPlugin::getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                                      const nvinfer1::DimsExprs*, int32_t,
                                      nvinfer1::DimsExprs* outputs, int32_t output_count,
                                      nvinfer1::IExprBuilder& expressions) noexcept {
  if (!has_arity(input_count, output_count)) return -1;
  if (inputs[0].nbDims != 4 || inputs[1].nbDims != 4 || inputs[2].nbDims != 1) {
    log_error("SnapKVSelect takes [1, H, W, D], [1, Hkv, T, D] and [1]");
    return -1;
  }
  outputs[0].nbDims = 3;
  outputs[0].d[0] = inputs[1].d[0];
  outputs[0].d[1] = inputs[1].d[1];
  outputs[0].d[2] = expressions.constant(attributes_.K);
  return 0;
}

size_t SelectPlugin::getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* in, int32_t,
                                      const nvinfer1::DynamicPluginTensorDesc*,
                                      int32_t) const noexcept {
  ElementType type;
  const nvinfer1::PluginTensorDesc tensors[] = {in[0].desc, in[1].desc, in[2].desc};
  if (!refusal(tensors).empty() || !element_type(in[0].desc.type, &type)) return 0;
  return workspace_bytes(problem(in[0].desc.dims, in[1].desc.dims), type);
}

int32_t SelectPlugin::enqueue(const nvinfer1::PluginTensorDesc* in,
                              const nvinfer1::PluginTensorDesc*, const void* const* inputs,
                              void* const* outputs, void* workspace,
                              cudaStream_t stream) noexcept {
  ElementType type;
  if (!element_type(in[0].type, &type)) return -1;
  const SelectTensors tensors{inputs[0], inputs[1], static_cast<const int64_t*>(inputs[2]),
                              static_cast<int64_t*>(outputs[0])};
  return select(problem(in[0].dims, in[1].dims), type, tensors, workspace, stream);
}

std::vector<PluginField> SelectPlugin::fields() const {
  const SelectAttributes& a = attributes_;
  const auto integers = [](const char* name, const int32_t* values, int count) {
    return PluginField(name, values, PluginFieldType::kINT32, count);
  };
  const auto word = [](const char* name, const std::string& value) {
    return PluginField(name, value.data(), PluginFieldType::kCHAR,
                       static_cast<int32_t>(value.size()));
  };
  return {integers("L_sink", &a.sink, 1),
          integers("L_recent", &a.recent, 1),
          integers("K", &a.K, 1),
          integers("pool_kernel", a.pool_kernel.data(), 2),
          PluginField("scale", &a.scale, PluginFieldType::kFLOAT32, 1),
          PluginField("softcap", &a.softcap, PluginFieldType::kFLOAT32, 1),
          word("softmax", a.softmax),
          word("vote", a.vote),
          word("pool", a.pool),
          word("group", a.group)};
}

}  // namespace snapexport
