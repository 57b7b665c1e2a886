# SPDX-License-Identifier: Apache-2.0
# Imported targets for the libtorch inside a Python environment's torch package:
#   torch::c10     libc10.so and the include folders
#   torch::cpu     libtorch_cpu.so, what every torch target links
#   torch::openmp  torch's own OpenMP runtime and the flag that turns its parallel loops on
# The package is located without being imported, because importing a CUDA build fails without the
# whole set of CUDA packages; its own CMake package demands a CUDA toolkit for the same builds.

set(PERFORMER_TORCH_MINIMUM 2.11)

# The interpreter: the one asked for, else the one that pip runs, else the tree's own environment,
# else the active one.
if(PERFORMER_PYTHON)
  set(performer_python "${PERFORMER_PYTHON}")
elseif(PERFORMER_WHEEL AND Python_EXECUTABLE)
  set(performer_python "${Python_EXECUTABLE}")
elseif(EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  set(performer_python "${PROJECT_SOURCE_DIR}/.venv/bin/python")
else()
  find_program(performer_python_found NAMES python3 python REQUIRED NO_CACHE)
  set(performer_python "${performer_python_found}")
endif()

# While it builds in isolation, pip hides the environment's packages behind PYTHONPATH.
set(performer_python_command "${performer_python}")
if(PERFORMER_WHEEL)
  set(performer_python_command
      "${CMAKE_COMMAND}" -E env --unset=PYTHONPATH "${performer_python}")
endif()
execute_process(
  COMMAND ${performer_python_command} -c
          "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE performer_torch_dir
  RESULT_VARIABLE performer_python_status
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT performer_python_status EQUAL 0)
  message(FATAL_ERROR "torch: cannot run ${performer_python}; set -DPERFORMER_PYTHON=/path/to/python")
endif()
if(NOT performer_torch_dir OR NOT EXISTS "${performer_torch_dir}/lib/libtorch_cpu.so")
  message(FATAL_ERROR
    "torch: ${performer_python} has no torch package with libtorch_cpu.so. Install torch "
    "${PERFORMER_TORCH_MINIMUM} or newer there, name another interpreter with "
    "-DPERFORMER_PYTHON=/path/to/python, or build the kernels alone with -DPERFORMER_TORCH=OFF")
endif()

file(STRINGS "${performer_torch_dir}/version.py" performer_torch_version_line REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+(\\.[0-9]+)?" performer_torch_version
       "${performer_torch_version_line}")
if(NOT performer_torch_version OR performer_torch_version VERSION_LESS PERFORMER_TORCH_MINIMUM)
  message(FATAL_ERROR "torch: ${performer_torch_dir} is version '${performer_torch_version}', "
                      "expected ${PERFORMER_TORCH_MINIMUM} or newer")
endif()
message(STATUS "torch ${performer_torch_version} in ${performer_torch_dir}")

add_library(torch::c10 SHARED IMPORTED)
set_target_properties(torch::c10 PROPERTIES
  IMPORTED_LOCATION "${performer_torch_dir}/lib/libc10.so"
  INTERFACE_INCLUDE_DIRECTORIES
    "${performer_torch_dir}/include;${performer_torch_dir}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1")

# A CUDA build needs the CUDA runtime and profiler libraries of the nvidia packages beside it.
cmake_path(GET performer_torch_dir PARENT_PATH performer_site_packages)
file(GLOB performer_nvidia_libs LIST_DIRECTORIES true "${performer_site_packages}/nvidia/*/lib")
set(performer_torch_link_options "")
foreach(folder IN LISTS performer_nvidia_libs)
  list(APPEND performer_torch_link_options "-Wl,-rpath-link,${folder}")
  if(NOT PERFORMER_WHEEL)  # Python has them loaded
    list(APPEND performer_torch_link_options "-Wl,-rpath,${folder}")
  endif()
endforeach()

add_library(torch::cpu SHARED IMPORTED)
set_target_properties(torch::cpu PROPERTIES
  IMPORTED_LOCATION "${performer_torch_dir}/lib/libtorch_cpu.so"
  INTERFACE_LINK_LIBRARIES torch::c10
  INTERFACE_LINK_OPTIONS "${performer_torch_link_options}")

# torch's parallel_for is compiled into its caller. It must run on the OpenMP runtime that torch
# itself loads, or the process would have two thread pools.
add_library(torch::openmp INTERFACE IMPORTED)
file(GLOB performer_torch_gomp "${performer_torch_dir}/lib/libgomp*.so*"
                               "${performer_site_packages}/torch.libs/libgomp*.so*")
if(performer_torch_gomp)
  list(GET performer_torch_gomp 0 performer_torch_gomp)
  set_target_properties(torch::openmp PROPERTIES
    INTERFACE_COMPILE_OPTIONS "-fopenmp"
    INTERFACE_LINK_LIBRARIES "${performer_torch_gomp}")
else()
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  set_target_properties(torch::openmp PROPERTIES INTERFACE_LINK_LIBRARIES OpenMP::OpenMP_CXX)
endif()

# Each translation unit on torch's headers takes over 1 GiB while it compiles.
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch_compile=2)

# Flags of every target on libtorch: its headers cost most of the build time, debug information
# would nearly double it.
function(performer_torch_target target)
  performer_target(${target})
  target_compile_options(${target} PRIVATE -O2 -g0)
  target_link_libraries(${target} PUBLIC torch::cpu)
  set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch_compile)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    # A precompiled header serves only the code-generation model that it was made for.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
    # SentencePiece and torch's libc10 both define FLAGS_minloglevel, an object here and an int there.
    # The first library loaded gives it to both: after torch, SentencePiece would write its object
    # over what follows the int. As a link option it stands, and is loaded, before all libraries.
    target_link_options(${target} PRIVATE
      "SHELL:-Wl,--push-state,--no-as-needed ${PERFORMER_SENTENCEPIECE_LIBRARY} -Wl,--pop-state")
  endif()
endfunction()

# Torch's headers, precompiled once for performer_torch and reused by `target`.
function(performer_torch_pch target)
  if(NOT PERFORMER_PCH)
    return()
  endif()
  if(target STREQUAL "performer_torch")
    target_precompile_headers(${target} PRIVATE <torch/torch.h>)
  else()
    target_precompile_headers(${target} REUSE_FROM performer_torch)
  endif()
  target_compile_options(${target} PRIVATE -Werror=invalid-pch)
endfunction()
