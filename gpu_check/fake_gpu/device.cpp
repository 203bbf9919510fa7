// A CUDA device that computes nothing, for a CPU build of torch. It answers what autograd, autocast and the choice of an
// attention kernel ask of a device; tensors on it are fake (torch._subclasses) and hold shapes alone.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

// One device, one stream, and nothing to wait for.
struct OneDevice final : c10::impl::DeviceGuardImplInterface {
  const c10::Device only{c10::DeviceType::CUDA, 0};
  c10::Stream stream() const { return c10::Stream(c10::Stream::DEFAULT, only); }

  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return only; }
  c10::Device exchangeDevice(c10::Device) const override { return only; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

const c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, new OneDevice());

}  // namespace

namespace at {

// ATen looks these hooks up by the name of their class.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void deviceSynchronize(DeviceIndex) const override {}
  const Generator& getDefaultGenerator(DeviceIndex) const override { return detail::getDefaultCPUGenerator(); }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

namespace native {

// What a Hopper card with a recent cuDNN takes: cuDNN where it is allowed, else flash attention without a mask, else the
// memory-efficient kernel, else plain products.
int64_t chosen_attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
                         double dropout, bool causal, std::optional<double> scale, bool grouped) {
  const auto& allowed = globalContext();
  const auto width = query.sym_size(-1);
  const bool half = query.scalar_type() == kBFloat16 || query.scalar_type() == kHalf;
  const bool fits = half && width == value.sym_size(-1);
  const bool one_to_one = query.sym_size(1) == key.sym_size(1) && key.sym_size(1) == value.sym_size(1);
  const bool heads = one_to_one || grouped;
  if (allowed.userEnabledCuDNNSDP() && fits && heads && width <= 128) return static_cast<int64_t>(SDPBackend::cudnn_attention);
  const bool square = query.sym_size(-2) == key.sym_size(-2);
  if (allowed.userEnabledFlashSDP() && fits && heads && !mask.has_value() && width <= 256 && (square || !causal))
    return static_cast<int64_t>(SDPBackend::flash_attention);
  if (allowed.userEnabledMemEfficientSDP() && one_to_one) return static_cast<int64_t>(SDPBackend::efficient_attention);
  return static_cast<int64_t>(SDPBackend::math);
}

const bool chooses = (_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&chosen_attention), true);

}  // namespace native
}  // namespace at
