// A STUB of TensorRT's plugin registry, and a C interface to drive plugins through it from tests.
//
// It stores creators and calls plugins in the order in which TensorRT's documentation says that it
// does. That TensorRT itself accepts the plugins is not shown by it.
#include <NvInferRuntime.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#if __has_include(<NvInferImpl.h>)
#include <NvInferImpl.h>
#endif

using namespace nvinfer1;

namespace {

std::string messages;
std::vector<IPluginCreatorInterface*> registered;

struct Logger : ILogger {
  void log(Severity severity, const char* message) noexcept override {
    messages += severity == Severity::kERROR ? "error: " : "";
    messages += std::string(message) + "\n";
  }
} logger;

struct Finder : ILoggerFinder {
  ILogger* findLogger() override { return &logger; }
} finder;

IPluginCreatorV3One* as_creator(IPluginCreatorInterface* creator) {
  return static_cast<IPluginCreatorV3One*>(creator);
}

struct Registry : IPluginRegistry {
  void setErrorRecorder(IErrorRecorder*) noexcept override {}
  IErrorRecorder* getErrorRecorder() const noexcept override { return nullptr; }
  bool isParentSearchEnabled() const override { return false; }
  void setParentSearchEnabled(bool) override {}
  void deregisterLibrary(PluginLibraryHandle) noexcept override {}
  bool deregisterCreator(const IPluginCreatorInterface&) noexcept override { return false; }
  IPluginResource* acquirePluginResource(const char*, IPluginResource*) noexcept override {
    return nullptr;
  }
  int32_t releasePluginResource(const char*) noexcept override { return -1; }
  IPluginCreatorInterface* const* getAllCreators(int32_t* count) const noexcept override {
    *count = static_cast<int32_t>(registered.size());
    return registered.data();
  }
  IPluginCreatorInterface* const* getAllCreatorsRecursive(int32_t* count) noexcept override {
    return getAllCreators(count);
  }
  IPluginCreatorInterface* getCreator(const char* name, const char* version,
                                      const char* name_space) noexcept override {
    for (IPluginCreatorInterface* one : registered) {
      const auto* creator = as_creator(one);
      if (!std::strcmp(creator->getPluginName(), name) &&
          !std::strcmp(creator->getPluginVersion(), version) &&
          !std::strcmp(creator->getPluginNamespace(), name_space)) {
        return one;
      }
    }
    return nullptr;
  }
  bool registerCreator(IPluginCreatorInterface& creator, const char*) noexcept override {
    auto* one = as_creator(&creator);
    if (getCreator(one->getPluginName(), one->getPluginVersion(), one->getPluginNamespace())) {
      return false;
    }
    registered.push_back(&creator);
    return true;
  }
  PluginLibraryHandle loadLibrary(const char* path) noexcept override {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      messages += dlerror();
      return nullptr;
    }
    using GetCreators = IPluginCreatorInterface* const* (*)(int32_t&);
    const auto get = reinterpret_cast<GetCreators>(dlsym(library, "getCreators"));
    const auto set = reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(library, "setLoggerFinder"));
    if (!get || !set) return nullptr;
    set(&finder);
    int32_t count = 0;
    auto* const* creators = get(count);
    for (int i = 0; i < count; ++i) registerCreator(*creators[i], "");
    return library;
  }
} registry;

struct Expression : IDimensionExpr, apiv::VDimensionExpr {
  explicit Expression(int64_t value_) : value(value_) { mImpl = this; }
  bool isConstant() const override { return true; }
  int64_t getConstantValue() const override { return value; }
  bool isSizeTensor() const override { return false; }
  int64_t value;
};

struct Builder : IExprBuilder, apiv::VExprBuilder {
  Builder() { mImpl = this; }
  const IDimensionExpr* constant(int64_t value) override {
    all.push_back(std::make_unique<Expression>(value));
    return all.back().get();
  }
  const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& a,
                                  const IDimensionExpr& b) override {
    const int64_t left = a.getConstantValue(), right = b.getConstantValue();
    return constant(op == DimensionOperation::kSUM ? left + right : left * right);
  }
  const IDimensionExpr* declareSizeTensor(int32_t, const IDimensionExpr&,
                                          const IDimensionExpr&) override {
    return nullptr;
  }
  std::vector<std::unique_ptr<Expression>> all;
};

template <class Capability>
Capability* capability(void* plugin, PluginCapabilityType type) {
  return static_cast<Capability*>(static_cast<IPluginV3*>(plugin)->getCapabilityInterface(type));
}
IPluginV3OneBuild* build_of(void* plugin) {
  return capability<IPluginV3OneBuild>(plugin, PluginCapabilityType::kBUILD);
}
IPluginV3OneRuntime* runtime_of(void* plugin) {
  return capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
}

void* create(const char* name, const PluginFieldCollection& fields, TensorRTPhase phase) {
  IPluginCreatorInterface* creator = registry.getCreator(name, "1", "");
  return creator ? as_creator(creator)->createPlugin("test", &fields, phase) : nullptr;
}

}  // namespace

extern "C" {

struct Tensor {
  int32_t type, format, rank;
  int64_t d[8];
};

IPluginRegistry* getPluginRegistry() noexcept { return &registry; }

int stub_load(const char* path) { return registry.loadLibrary(path) ? 0 : 1; }
int stub_count() { return static_cast<int>(registered.size()); }
const char* stub_name(int index) { return as_creator(registered[index])->getPluginName(); }
const char* stub_messages() {
  static std::string told;
  told.swap(messages);
  messages.clear();
  return told.c_str();
}

// The names of a creator's fields, separated by spaces.
const char* stub_fields(int index) {
  static std::string text;
  text.clear();
  const PluginFieldCollection* fields = as_creator(registered[index])->getFieldNames();
  for (int i = 0; i < fields->nbFields; ++i) text += std::string(fields->fields[i].name) + " ";
  return text.c_str();
}

void* stub_create(const char* name, const PluginField* fields, int count) {
  return create(name, {count, fields}, TensorRTPhase::kBUILD);
}

// What an engine does: the fields are written out, and a new plugin is made from copies of them.
void* stub_deserialize(void* plugin) {
  const PluginFieldCollection* written = runtime_of(plugin)->getFieldsToSerialize();
  std::vector<std::string> names, bytes;
  std::vector<PluginField> fields;
  for (int i = 0; i < written->nbFields; ++i) {
    const PluginField& field = written->fields[i];
    const size_t size = field.type == PluginFieldType::kCHAR ? 1 : 4;
    names.emplace_back(field.name);
    bytes.emplace_back(static_cast<const char*>(field.data), size * field.length);
  }
  for (int i = 0; i < written->nbFields; ++i) {
    fields.emplace_back(names[i].c_str(), bytes[i].data(), written->fields[i].type,
                        written->fields[i].length);
  }
  auto* core = capability<IPluginV3OneCore>(plugin, PluginCapabilityType::kCORE);
  return create(core->getPluginName(), {written->nbFields, fields.data()}, TensorRTPhase::kRUNTIME);
}

void* stub_clone(void* plugin) { return static_cast<IPluginV3*>(plugin)->clone(); }
void* stub_attach(void* plugin) { return runtime_of(plugin)->attachToContext(nullptr); }
void stub_destroy(void* plugin) { delete static_cast<IPluginV3*>(plugin); }

static PluginTensorDesc described(const Tensor& tensor) {
  PluginTensorDesc desc{};
  desc.type = static_cast<DataType>(tensor.type);
  desc.format = static_cast<TensorFormat>(tensor.format);
  desc.dims.nbDims = tensor.rank;
  std::memcpy(desc.dims.d, tensor.d, sizeof tensor.d);
  return desc;
}
static std::vector<DynamicPluginTensorDesc> dynamic(const Tensor* tensors, int count) {
  std::vector<DynamicPluginTensorDesc> all(count);
  for (int i = 0; i < count; ++i) {
    all[i].desc = described(tensors[i]);
    all[i].min = all[i].max = all[i].opt = all[i].desc.dims;
  }
  return all;
}

int stub_supports(void* plugin, int position, const Tensor* tensors, int inputs, int outputs) {
  const auto all = dynamic(tensors, inputs + outputs);
  return build_of(plugin)->supportsFormatCombination(position, all.data(), inputs, outputs);
}

// Shapes and types of the outputs from those of the inputs.
int stub_outputs(void* plugin, const Tensor* in, int inputs, Tensor* out, int outputs) {
  Builder builder;
  std::vector<DimsExprs> given(inputs), wanted(outputs);
  std::vector<DataType> types(inputs), output_types(outputs);
  for (int i = 0; i < inputs; ++i) {
    types[i] = static_cast<DataType>(in[i].type);
    given[i].nbDims = in[i].rank;
    for (int j = 0; j < in[i].rank; ++j) given[i].d[j] = builder.constant(in[i].d[j]);
  }
  IPluginV3OneBuild* build = build_of(plugin);
  if (build->getNbOutputs() != outputs) return -2;
  const int status = build->getOutputShapes(given.data(), inputs, nullptr, 0, wanted.data(), outputs,
                                            builder) |
                     build->getOutputDataTypes(output_types.data(), outputs, types.data(), inputs);
  for (int i = 0; status == 0 && i < outputs; ++i) {
    out[i].type = static_cast<int32_t>(output_types[i]);
    out[i].rank = wanted[i].nbDims;
    for (int j = 0; j < out[i].rank; ++j) out[i].d[j] = wanted[i].d[j]->getConstantValue();
  }
  return status;
}

int stub_configure(void* plugin, const Tensor* tensors, int inputs, int outputs) {
  const auto all = dynamic(tensors, inputs + outputs);
  return build_of(plugin)->configurePlugin(all.data(), inputs, all.data() + inputs, outputs);
}

size_t stub_workspace(void* plugin, const Tensor* tensors, int inputs, int outputs) {
  const auto all = dynamic(tensors, inputs + outputs);
  return build_of(plugin)->getWorkspaceSize(all.data(), inputs, all.data() + inputs, outputs);
}

int stub_run(void* plugin, const Tensor* tensors, int inputs, int outputs, void** memory,
             void* workspace) {
  std::vector<PluginTensorDesc> all;
  for (int i = 0; i < inputs + outputs; ++i) all.push_back(described(tensors[i]));
  IPluginV3OneRuntime* runtime = runtime_of(plugin);
  const PluginTensorDesc *in = all.data(), *out = in + inputs;
  if (runtime->onShapeChange(in, inputs, out, outputs) != 0) return -1;
  return runtime->enqueue(in, out, memory, memory + inputs, workspace, nullptr);
}

}  // extern "C"
