// Memory that several processes have; staticrt/memory/sharing.py is its Python face.
#include <ATen/EmptyTensor.h>
#include <c10/core/TensorOptions.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

#include "allocator/sharing/exports.h"
#include "allocator/sharing/imports.h"
#include "allocator/simulated/driver_sim.h"
#include "bindings/allocator.h"
#include "common/error.h"

namespace py = pybind11;

namespace staticrt::bindings {

using namespace alloc;

namespace {

// An opened block, as the context of a storage.
struct Opened {
  std::shared_ptr<DeviceAllocator> allocator;
  Addr address = kNullAddr;
};

void close_opened(void* context) {
  const std::unique_ptr<Opened> opened(static_cast<Opened*>(context));
  const auto close = [&] {
    (void)opened->allocator->imports().close(opened->address, /*wait=*/!SimDriver::in_work()).ok();
  };
  if (Py_IsInitialized() && PyGILState_Check()) {
    const GilRelease release;  // it may wait for the device
    close();
  } else {
    close();
  }
}

// `size` bytes of the block from `begin` on, as a tensor of bytes that keeps the block open.
at::Tensor open_bytes(const std::shared_ptr<MemoryDevice>& device, const SharedBlock& block, Bytes begin,
                      Bytes size, uint64_t stream, at::Device where) {
  SRT_CHECK(begin <= block.size && size <= block.size - begin, "a shared block of ", block.size,
            " bytes cannot give ", size, " bytes from byte ", begin, " on");
  auto opened = std::make_unique<Opened>(Opened{device->allocator, kNullAddr});
  called([&] { return opened->allocator->imports().open(block, StreamId{stream}, &opened->address); });
  void* bytes = reinterpret_cast<void*>(opened->address + begin);
  c10::Storage storage(c10::Storage::use_byte_size_t(), size,
                       c10::DataPtr(bytes, opened.release(), &close_opened, where),
                       /*allocator=*/nullptr, /*resizable=*/false);
  const auto key = c10::computeDispatchKey(at::kByte, c10::kStrided, where);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                               caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(size)});
  return tensor;
}

// The storage's block, to be opened by others. The storage keeps its bytes for good: nothing donates them.
std::shared_ptr<SharedBlock> share_bytes(MemoryDevice& device, const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const c10::DeleterFnPtr deleter = storage.data_ptr().get_deleter();
  if (deleter != &close_opened && deleter != c10::GetAllocator(tensor.device().type())->raw_deleter())
    check(Status::Unsupported(
        "the memory is not the tensor's own, and may be written again (an output of manage_outputs, a "
        "graph's result, another library's tensor); share a clone() of it"));
  auto block = std::make_shared<SharedBlock>();
  const auto inside = reinterpret_cast<Addr>(storage.data_ptr().get());
  called([&] { return device.allocator->exports().share(inside, block.get()); });
  storage.set_resizable(false);
  return block;
}

using Key = std::tuple<uint64_t, uint64_t, uint64_t>;
using Layout = std::tuple<Key, Addr, Bytes, Bytes, std::vector<Bytes>>;

Layout layout_of(const SharedBlock& block) {
  std::vector<Bytes> pages;
  for (const SharedBlock::Page& page : block.pages) pages.push_back(page.size);
  return {{block.key.allocator[0], block.key.allocator[1], block.key.allocation},
          block.address,
          block.size,
          block.page_offset,
          pages};
}

std::shared_ptr<SharedBlock> block_of(const Layout& layout, const std::vector<int>& fds) {
  auto block = std::make_shared<SharedBlock>();
  const auto& [key, address, size, page_offset, pages] = layout;
  SRT_CHECK(fds.size() == pages.size() + 1, "a shared block of ", pages.size(), " pages has ",
            pages.size() + 1, " file descriptors, not ", fds.size());
  block->key = {{std::get<0>(key), std::get<1>(key)}, std::get<2>(key)};
  block->address = address;
  block->size = size;
  block->page_offset = page_offset;
  for (size_t page = 0; page < pages.size(); ++page)
    block->pages.push_back({pages[page], FileDescriptor(fds[page])});
  block->token = FileDescriptor(fds.back());
  return block;
}

}  // namespace

void bind_allocator_sharing(py::module_& m, MemoryDeviceClass& device) {
  py::class_<SharedBlock, std::shared_ptr<SharedBlock>>(m, "SharedBlock")
      .def(py::init(&block_of), py::arg("layout"), py::arg("fds"))
      .def_property_readonly("layout", &layout_of)
      .def_property_readonly("address", [](const SharedBlock& block) { return block.address; })
      .def_property_readonly("fds",
                             [](const SharedBlock& block) {
                               std::vector<int> fds;
                               for (const SharedBlock::Page& page : block.pages)
                                 fds.push_back(page.fd.number());
                               fds.push_back(block.token.number());
                               return fds;
                             })
      .def("close", [](SharedBlock& block) {
        block.pages.clear();
        block.token = {};
      });
  device
      .def("capturing",
           [](MemoryDevice& d, uint64_t stream) {
             CaptureState state;
             called([&] { return d.driver->capture_state(StreamId{stream}, &state); });
             return state.status != CaptureStatus::none;
           })
      .def("share", &share_bytes, py::arg("tensor"))
      .def("shared_counts", [](MemoryDevice& d) {
        return asked([&] {
          d.allocator->imports().settle();
          (void)d.allocator->exports().collect();
          return std::make_pair(d.allocator->exports().count(), d.allocator->imports().count());
        });
      });
  m.def("open_shared_bytes", &open_bytes, py::arg("device"), py::arg("block"), py::arg("begin"),
        py::arg("size"), py::arg("stream"), py::arg("where"));
}

}  // namespace staticrt::bindings
