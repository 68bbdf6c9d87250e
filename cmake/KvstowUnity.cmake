# Builds with sanitizers (presets asan and tsan) compile up to eight sources of a folder at a time: KVSTOW_UNITY. Such a
# build takes half the CPU time. It is not CMake's own unity build, whose files name the sources by absolute paths: ccache
# then knows none of them in another clone.
#
# Sources of one target share one anonymous namespace then. These have a name there that another source of their target
# has, too, and are compiled alone. So are all loops for Highway, which a source may have once, and sources with options of
# their own. When asan says "redefinition" or "ambiguous" of a name that two sources have, rename it, or add a source here;
# so for a class whose member "uses the anonymous namespace".
set(KVSTOW_COMPILED_ALONE
    base/aes_gcm_ipsec_mb.cc
    client/connection/client_core.cc
    client/connection/local_memory.cc
    client/planner/outcome.cc
    client/transport/local_transport.cc
    client/transport/stream_get.cc
    client/transport/stream_put.cc
    client/transport/stream_transport.cc
    kernels/calibration/calibration.cc
    kernels/calibration/calibration_basis.cc
    kernels/codec/key_groups.cc
    kernels/codec/presets.cc
    kernels/device/joint_decoder.cc
    kernels/entropy/bit_pack.cc
    kernels/entropy/byte_classes_simd.cc
    kernels/entropy/byte_rans_simd.cc
    kernels/entropy/plane_decode_simd.cc
    kernels/entropy/plane_encode_simd.cc
    kernels/importance/key_value_scores.cc
    kernels/importance/query_scores.cc
    kernels/importance/query_tables.cc
    kernels/importance/score_maps.cc
    kernels/importance/score_ops.cc
    kernels/importance/vector_sums.cc
    kernels/methods/joint_coder.cc
    kernels/methods/joint_fit.cc
    kernels/methods/lossless_run_codec.cc
    kernels/methods/nuq_run_codec.cc
    kernels/methods/pca_fit.cc
    kernels/methods/pca_run_codec.cc
    kernels/methods/planes_run_codec.cc
    kernels/methods/predict_run_codec.cc
    kernels/methods/waterfill_run_codec.cc
    kernels/page/channel_rows.cc
    kernels/page/convert.cc
    kernels/page/squared_error.cc
    kernels/quantize/affine.cc
    kernels/quantize/affine_raw_simd.cc
    kernels/quantize/affine_simd.cc
    kernels/quantize/affine_turned_simd.cc
    kernels/quantize/block_simd.cc
    kernels/quantize/codebook.cc
    kernels/quantize/codebook_simd.cc
    kernels/quantize/combine.cc
    kernels/quantize/dead_zone.cc
    kernels/quantize/levels.cc
    kernels/quantize/levels_simd.cc
    kernels/quantize/magnitude.cc
    kernels/quantize/minifloat.cc
    kernels/quantize/minifloat_simd.cc
    kernels/quantize/sketch.cc
    kernels/quantize/split.cc
    kernels/quantize/symmetric.cc
    kernels/transform/byte_planes.cc
    kernels/transform/dense_product.cc
    kernels/transform/hadamard_simd.cc
    kernels/transform/pair_rotations_simd.cc
    kernels/transform/singular_vectors.cc
    kernels/transform/tile_product.cc
    kernels/transform/transpose.cc
    proto/wire/local_socket.cc
    service/access/access.cc
    service/api/admin_service.cc
    service/fitting/fit_process.cc
    service/fitting/fitter.cc
    service/operators/quota_operator.cc
    service/ops/config.cc
    service/ops/status_page.cc
    service/pages/age_table.cc
    service/pages/attention_columns.cc
    service/remote/remote_purge.cc
    service/server.cc
    service/transports/local_sessions.cc
    service/transports/streams.cc
    storage/record.cc
    storage/seal/seal.cc
    storage/seal/vault.cc
    storage/trace/trace_reader.cc
    tests/adversary/cross_tenant_test.cc
    tests/adversary/deletes_test.cc
    tests/adversary/idle_test.cc
    tests/adversary/lying_server.cc
    tests/adversary/timing_probe_test.cc
    tests/adversary/two_models_test.cc
    tests/client/connection/node_list_test.cc
    tests/client/connection/nodes_test.cc
    tests/client/fake_server.cc
    tests/client/fault_test.cc
    tests/client/planner/outcome_test.cc
    tests/client/planner/recipe_size_test.cc
    tests/client/transport/direct_transport_test.cc
    tests/integration/old_store_test.cc
    tests/integration/plan_test.cc
    tests/kernels/calibration/token_slopes_test.cc
    tests/kernels/codec/calibrated_codec_test.cc
    tests/kernels/codec/golden_test.cc
    tests/kernels/codec/range_decode_test.cc
    tests/kernels/device/emulated_scorer.cc
    tests/kernels/entropy/byte_rans_test.cc
    tests/kernels/entropy/plane_coder_test.cc
    tests/kernels/importance/budget_test.cc
    tests/kernels/importance/policy_test.cc
    tests/kernels/importance/query_tables_test.cc
    tests/kernels/methods/divergence_meter_test.cc
    tests/kernels/methods/lossless_test.cc
    tests/kernels/methods/page_tables_test.cc
    tests/kernels/methods/sparse_test.cc
    tests/kernels/page/page_digests_test.cc
    tests/kernels/quantize/quantize_test.cc
    tests/kernels/transform/singular_vectors_test.cc
    tests/service/events/event_publisher_test.cc
    tests/service/pages/device_coder_test.cc
    tests/service/pages/page_cooler_test.cc
    tests/service/pages/queries_test.cc
    tests/service/pages/sparse_test.cc
    tests/service/pages/summaries_test.cc
    tests/service/remote/sealed_page_test.cc
    tests/service/spaces/calibrated_test.cc
    tests/service/spaces/device_forms_test.cc
    tests/service/spaces/forms_test.cc
    tests/service/transports/local_sessions_test.cc
    tests/service/transports/put_stream_test.cc
    tests/service/transports/put_test.cc
    tests/storage/record_test.cc
    tests/storage/store/random_test.cc
    tests/storage/store/simulation_test.cc
    tests/storage/trace/simulator_test.cc)

# kvstow_unite(TARGET OUT SOURCE ...): sets OUT to the sources to compile. Verbs of the command line have helpers of one
# name (Ask, Print, Table), so that the target kvstow stays as it is.
function(kvstow_unite target out)
  set(${out} ${ARGN} PARENT_SCOPE)
  if(NOT KVSTOW_UNITY OR target STREQUAL "kvstow")
    return()
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE here)
  set(compiled)
  set(folders)
  foreach(source ${ARGN})
    if(IS_ABSOLUTE ${source} OR NOT source MATCHES "[.]cc$" OR "${here}/${source}" IN_LIST KVSTOW_COMPILED_ALONE)
      list(APPEND compiled ${source})
      continue()
    endif()
    cmake_path(GET source PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "in_${folder}" folder)
    list(APPEND folders ${folder})
    list(APPEND sources_of_${folder} ${source})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    set(number 0)
    while(sources_of_${folder})
      list(LENGTH sources_of_${folder} left)
      set(text "")
      foreach(i RANGE 1 8)
        list(POP_FRONT sources_of_${folder} source)
        if(source)
          string(APPEND text "#include \"${here}/${source}\"\n")
        endif()
      endforeach()
      set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_${folder}_${number}.cc)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
      list(APPEND compiled ${file})
      math(EXPR number "${number} + 1")
    endwhile()
  endforeach()
  set(${out} ${compiled} PARENT_SCOPE)
endfunction()
