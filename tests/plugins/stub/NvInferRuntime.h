// A STUB, not TensorRT: our own declarations of the few names of TensorRT's plugin interface that the
// plugins use, so that they compile and run under test where TensorRT's headers are not at hand.
// Nothing that is shipped is built with it. What it declares follows the documented interface of
// TensorRT 10 and 11 (IPluginV3), virtual functions in the real order: the real library loads plugins
// that are built with it. The same tests run over the real headers where they are found.
#pragma once

#include <cstddef>
#include <cstdint>

using cudaStream_t = struct CUstream_st*;

namespace nvinfer1 {

using AsciiChar = char;

enum class DataType : int32_t {
  kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBOOL = 4, kUINT8 = 5, kFP8 = 6, kBF16 = 7, kINT64 = 8
};
enum class TensorFormat : int32_t { kLINEAR = 0, kCHW2 = 1, kHWC8 = 2 };
enum class PluginFieldType : int32_t {
  kFLOAT16 = 0, kFLOAT32 = 1, kFLOAT64 = 2, kINT8 = 3, kINT16 = 4, kINT32 = 5, kCHAR = 6, kDIMS = 7,
  kUNKNOWN = 8, kBF16 = 9, kINT64 = 10
};
enum class TensorRTPhase : int32_t { kBUILD = 0, kRUNTIME = 1 };
enum class PluginCapabilityType : int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };
enum class DimensionOperation : int32_t { kSUM = 0, kPROD = 1 };

class Dims {
 public:
  static constexpr int32_t MAX_DIMS{8};
  int32_t nbDims;
  int64_t d[MAX_DIMS];
};

struct PluginTensorDesc {
  Dims dims;
  DataType type;
  TensorFormat format;
  float scale;
};
struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims min, max, opt;
};

class PluginField {
 public:
  const AsciiChar* name;
  const void* data;
  PluginFieldType type;
  int32_t length;
  PluginField(const AsciiChar* name_ = nullptr, const void* data_ = nullptr,
              PluginFieldType type_ = PluginFieldType::kUNKNOWN, int32_t length_ = 0) noexcept
      : name(name_), data(data_), type(type_), length(length_) {}
};
struct PluginFieldCollection {
  int32_t nbFields{};
  const PluginField* fields{};
};

class IDimensionExpr;
namespace apiv {
class VDimensionExpr {
 public:
  virtual ~VDimensionExpr() = default;
  virtual bool isConstant() const = 0;
  virtual int64_t getConstantValue() const = 0;
  virtual bool isSizeTensor() const = 0;
};
class VExprBuilder {
 public:
  virtual ~VExprBuilder() = default;
  virtual const IDimensionExpr* constant(int64_t value) = 0;
  virtual const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& first,
                                          const IDimensionExpr& second) = 0;
  virtual const IDimensionExpr* declareSizeTensor(int32_t output, const IDimensionExpr& opt,
                                                  const IDimensionExpr& upper) = 0;
};
}  // namespace apiv

class IDimensionExpr {
 public:
  int64_t getConstantValue() const noexcept { return mImpl->getConstantValue(); }

 protected:
  apiv::VDimensionExpr* mImpl;
  virtual ~IDimensionExpr() = default;
};
class IExprBuilder {
 public:
  const IDimensionExpr* constant(int64_t value) noexcept { return mImpl->constant(value); }
  const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& first,
                                  const IDimensionExpr& second) noexcept {
    return mImpl->operation(op, first, second);
  }

 protected:
  apiv::VExprBuilder* mImpl;
  virtual ~IExprBuilder() = default;
};
class DimsExprs {
 public:
  int32_t nbDims;
  const IDimensionExpr* d[Dims::MAX_DIMS];
};

enum class APILanguage : int32_t { kCPP = 0, kPYTHON = 1 };
struct InterfaceInfo {
  const AsciiChar* kind;
  int32_t major;
  int32_t minor;
};
class IVersionedInterface {
 public:
  virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
  virtual ~IVersionedInterface() noexcept = default;
};
class IPluginCapability : public IVersionedInterface {};
class IPluginResourceContext;

class IPluginV3 : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
  virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept = 0;
  virtual IPluginV3* clone() noexcept = 0;
};
class IPluginV3OneCore : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
  virtual const AsciiChar* getPluginName() const noexcept = 0;
  virtual const AsciiChar* getPluginVersion() const noexcept = 0;
  virtual const AsciiChar* getPluginNamespace() const noexcept = 0;
};
class IPluginV3OneBuild : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
  virtual int32_t configurePlugin(const DynamicPluginTensorDesc* in, int32_t inputs,
                                  const DynamicPluginTensorDesc* out, int32_t outputs) noexcept = 0;
  virtual int32_t getOutputDataTypes(DataType* output_types, int32_t outputs,
                                     const DataType* input_types, int32_t inputs) const noexcept = 0;
  virtual int32_t getOutputShapes(const DimsExprs* inputs, int32_t input_count,
                                  const DimsExprs* shape_inputs, int32_t shape_input_count,
                                  DimsExprs* outputs, int32_t output_count,
                                  IExprBuilder& builder) noexcept = 0;
  virtual bool supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* tensors,
                                         int32_t inputs, int32_t outputs) noexcept = 0;
  virtual int32_t getNbOutputs() const noexcept = 0;
  virtual size_t getWorkspaceSize(const DynamicPluginTensorDesc*, int32_t,
                                  const DynamicPluginTensorDesc*, int32_t) const noexcept {
    return 0;
  }
  virtual int32_t getValidTactics(int32_t*, int32_t) noexcept { return 0; }
  virtual int32_t getNbTactics() noexcept { return 0; }
  virtual const AsciiChar* getTimingCacheID() noexcept { return nullptr; }
  virtual int32_t getFormatCombinationLimit() noexcept { return 100; }
  virtual const AsciiChar* getMetadataString() noexcept { return nullptr; }
};
class IPluginV3OneRuntime : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
  virtual int32_t setTactic(int32_t) noexcept { return 0; }
  virtual int32_t onShapeChange(const PluginTensorDesc* in, int32_t inputs,
                                const PluginTensorDesc* out, int32_t outputs) noexcept = 0;
  virtual int32_t enqueue(const PluginTensorDesc* in, const PluginTensorDesc* out,
                          const void* const* inputs, void* const* outputs, void* workspace,
                          cudaStream_t stream) noexcept = 0;
  virtual IPluginV3* attachToContext(IPluginResourceContext* context) noexcept = 0;
  virtual const PluginFieldCollection* getFieldsToSerialize() noexcept = 0;
};

class IPluginCreatorInterface : public IVersionedInterface {};
class IPluginCreatorV3One : public IPluginCreatorInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
  virtual IPluginV3* createPlugin(const AsciiChar* name, const PluginFieldCollection* fields,
                                  TensorRTPhase phase) noexcept = 0;
  virtual const PluginFieldCollection* getFieldNames() noexcept = 0;
  virtual const AsciiChar* getPluginName() const noexcept = 0;
  virtual const AsciiChar* getPluginVersion() const noexcept = 0;
  virtual const AsciiChar* getPluginNamespace() const noexcept = 0;
};

class ILogger : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"ILogger", 1, 0}; }
  enum class Severity : int32_t { kINTERNAL_ERROR, kERROR, kWARNING, kINFO, kVERBOSE };
  virtual void log(Severity severity, const AsciiChar* message) noexcept = 0;
};
class ILoggerFinder : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"ILoggerFinder", 1, 0}; }
  virtual ILogger* findLogger() = 0;
};

class IErrorRecorder;
class IPluginResource;
class IPluginRegistry {
 public:
  using PluginLibraryHandle = void*;
  virtual void setErrorRecorder(IErrorRecorder* recorder) noexcept = 0;
  virtual IErrorRecorder* getErrorRecorder() const noexcept = 0;
  virtual bool isParentSearchEnabled() const = 0;
  virtual void setParentSearchEnabled(bool enabled) = 0;
  virtual PluginLibraryHandle loadLibrary(const AsciiChar* path) noexcept = 0;
  virtual void deregisterLibrary(PluginLibraryHandle handle) noexcept = 0;
  virtual bool registerCreator(IPluginCreatorInterface& creator,
                               const AsciiChar* name_space) noexcept = 0;
  virtual IPluginCreatorInterface* const* getAllCreators(int32_t* count) const noexcept = 0;
  virtual IPluginCreatorInterface* getCreator(const AsciiChar* name, const AsciiChar* version,
                                              const AsciiChar* name_space = "") noexcept = 0;
  virtual bool deregisterCreator(const IPluginCreatorInterface& creator) noexcept = 0;
  virtual IPluginResource* acquirePluginResource(const AsciiChar* key,
                                                 IPluginResource* resource) noexcept = 0;
  virtual int32_t releasePluginResource(const AsciiChar* key) noexcept = 0;
  virtual IPluginCreatorInterface* const* getAllCreatorsRecursive(int32_t* count) noexcept = 0;

 protected:
  virtual ~IPluginRegistry() noexcept = default;
};

}  // namespace nvinfer1

extern "C" nvinfer1::IPluginRegistry* getPluginRegistry() noexcept;
