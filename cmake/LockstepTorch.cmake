# LibTorch as the target lockstep::torch, and the one precompiled header that includes it.
#
# The libraries are named here instead of through find_package(Torch): its Caffe2 part looks for
# CUDA, MKL, Kineto and more, warns about what it does not find, and lockstep needs none of it.
#
# Looked for in CMAKE_PREFIX_PATH (LibTorch's root, or torch/share/cmake of a Python package), then
# in .deps/libtorch, where ./dev puts it.

find_path(LOCKSTEP_TORCH_CMAKE_DIR TorchConfig.cmake
          HINTS ENV CMAKE_PREFIX_PATH
          PATHS "${PROJECT_SOURCE_DIR}/.deps/libtorch"
          PATH_SUFFIXES share/cmake/Torch Torch
          DOC "The folder of LibTorch's TorchConfig.cmake")
if(NOT LOCKSTEP_TORCH_CMAKE_DIR)
  message(FATAL_ERROR
    "LibTorch was not found: neither in CMAKE_PREFIX_PATH nor in .deps/libtorch.\n"
    "Run ./dev build, which fetches it, or pass -DCMAKE_PREFIX_PATH=/path/to/libtorch, "
    "or build the part that needs no LibTorch: cmake --preset walk")
endif()
cmake_path(SET torch_root NORMALIZE "${LOCKSTEP_TORCH_CMAKE_DIR}/../../..")
string(REGEX REPLACE "/$" "" torch_root "${torch_root}")

# GBs of libraries that lockstep does not use, and a build that it is not tested with.
foreach(accelerator cuda hip xpu)
  if(EXISTS "${torch_root}/lib/libtorch_${accelerator}.so")
    message(FATAL_ERROR
      "LibTorch in ${torch_root} is built for an accelerator: it holds libtorch_${accelerator}.so. "
      "Expected: a build for the CPU. Unset CMAKE_PREFIX_PATH and run ./dev build, which fetches one, "
      "or name the folder of one by CMAKE_PREFIX_PATH.")
  endif()
endforeach()

foreach(name torch torch_cpu c10)
  set(file "${torch_root}/lib/lib${name}.so")
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR
      "LibTorch in ${torch_root} is not whole: ${file} is missing. Remove .deps/libtorch and run "
      "./dev build, or pass another LibTorch by CMAKE_PREFIX_PATH.")
  endif()
  add_library(lockstep_libtorch_${name} SHARED IMPORTED)
  set_target_properties(lockstep_libtorch_${name} PROPERTIES IMPORTED_LOCATION "${file}")
endforeach()

set(LOCKSTEP_TORCH_VERSION "")
foreach(part MAJOR MINOR PATCH)
  file(STRINGS "${torch_root}/include/torch/headeronly/version.h" line
       REGEX "^#define TORCH_VERSION_${part} ")
  string(REGEX MATCH "[0-9]+$" number "${line}")
  list(APPEND LOCKSTEP_TORCH_VERSION "${number}")
endforeach()
list(JOIN LOCKSTEP_TORCH_VERSION "." LOCKSTEP_TORCH_VERSION)
# The build's own name, "2.13.0+cpu", where the package says it: other builds compute other bits.
set(LOCKSTEP_TORCH_BUILD "${LOCKSTEP_TORCH_VERSION}")
if(EXISTS "${torch_root}/build-version")
  file(STRINGS "${torch_root}/build-version" LOCKSTEP_TORCH_BUILD LIMIT_COUNT 1)
endif()
message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION} in ${torch_root}")
if(NOT LOCKSTEP_TORCH_VERSION MATCHES "^2\\.13\\.")
  message(WARNING "lockstep is tested with LibTorch 2.13; found ${LOCKSTEP_TORCH_VERSION}.")
endif()

add_library(lockstep_libtorch INTERFACE)
add_library(lockstep::torch ALIAS lockstep_libtorch)
target_include_directories(lockstep_libtorch SYSTEM
                           INTERFACE "${torch_root}/include"
                                     "${torch_root}/include/torch/csrc/api/include")
target_link_libraries(lockstep_libtorch INTERFACE lockstep_libtorch_torch
                                                  lockstep_libtorch_torch_cpu
                                                  lockstep_libtorch_c10 Threads::Threads)

# torch/torch.h takes 17 s to compile; from here a file takes two or three.
add_library(lockstep_torch_pch OBJECT "${PROJECT_SOURCE_DIR}/cmake/torch_pch.cpp")
target_link_libraries(lockstep_torch_pch PRIVATE lockstep_options lockstep_libtorch)
target_precompile_headers(lockstep_torch_pch PRIVATE "${PROJECT_SOURCE_DIR}/cmake/torch_pch.h")
set_target_properties(lockstep_torch_pch PROPERTIES LOCKSTEP_OWN ON JOB_POOL_COMPILE lockstep_torch)
