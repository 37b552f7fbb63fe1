{{/*
What a cluster's operators may say of every pod (global.overrides) and of a part's (PART.overrides, which goes before it), in the
spelling and with the protection of rolecast.launching.overrides. As JSON, so that a null, which takes a default of ours away, is kept.
*/}}
{{- define "common.overrides" -}}
{{- $given := mergeOverwrite (deepCopy (.Values.global.overrides | default dict)) (deepCopy (.Values.overrides | default dict)) -}}
{{- $where := printf "%s.overrides or global.overrides" .Chart.Name -}}
{{- $own := list "app.kubernetes.io/" "rolecast.dev/" "training.kubeflow.org/" "trainer.kubeflow.org/" "sidecar.istio.io/" "kueue.x-k8s.io/" -}}
{{- range $prefix := $own }}
{{- range $key, $_ := $given.labels }}
{{- if hasPrefix $prefix $key }}{{ fail (printf "%s: label %s is set by Rolecast or an operator; choose another prefix" $where $key) }}{{ end -}}
{{- end }}
{{- end -}}
{{- range $prefix := concat $own (list "checksum/" "serving.kserve.io/" "kubectl.kubernetes.io/" "cluster-autoscaler.kubernetes.io/safe-to-evict") }}
{{- range $key, $_ := $given.annotations }}
{{- if hasPrefix $prefix $key }}{{ fail (printf "%s: annotation %s is set by Rolecast or an operator; %s" $where $key (ternary "set safeToEvict" "choose another prefix" (hasSuffix "safe-to-evict" $key))) }}{{ end -}}
{{- end }}
{{- end -}}
{{- range $name, $value := $given.env }}
{{- if regexMatch "^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PET_.*|TORCHELASTIC_.*)$" $name }}
{{- fail (printf "%s: variable %s is set by torchrun or the operator; remove it" $where $name) }}
{{- end }}
{{- if and (kindIs "string" $value) (regexMatch "(SECRET|PASSWORD|CREDENTIAL|TOKEN$|KEY$|KEY_ID$)" $name) }}
{{- fail (printf "%s: variable %s looks like a secret; give it by secretKeyRef" $where $name) }}
{{- end }}
{{- end -}}
{{- $volumes := list -}}
{{- range $given.volumes }}
{{- $volumes = append $volumes .name -}}
{{- if has .name (list "tmp" "work" "shm" "dshm" "auth" "s3-ca" "s3-token") }}{{ fail (printf "%s: volume %s is Rolecast's own; give it another name" $where .name) }}{{ end -}}
{{- if ne (len .) 2 }}{{ fail (printf "%s: volume %s is of one kind: configMap, secret, persistentVolumeClaim, emptyDir, csi or ephemeral" $where .name) }}{{ end -}}
{{- end -}}
{{- range $mount := $given.volumeMounts }}
{{- range $folder := list "/tmp" "/work" "/dev/shm" "/etc/rolecast" "/var/run/secrets" "/mnt/models" "/opt/venv" }}
{{- if hasPrefix (printf "%s/" $folder) (printf "%s/" $mount.mountPath) }}{{ fail (printf "%s: mountPath %s is Rolecast's own (%s); mount it elsewhere" $where $mount.mountPath $folder) }}{{ end -}}
{{- end -}}
{{- if not (has $mount.name $volumes) }}{{ fail (printf "%s: volumeMounts names %s, and volumes does not; add it there" $where $mount.name) }}{{ end -}}
{{- end -}}
{{- range $name, $_ := $given.extraResources }}
{{- if eq $name ($given.gpuResource | default "nvidia.com/gpu") }}{{ fail (printf "%s: extraResources names the GPU, %s; say how many in resources.limits" $where $name) }}{{ end -}}
{{- end -}}
{{- $given | toJson -}}
{{- end }}

{{/* A security context of ours (YAML) with what is given over it; what is null is taken away. */}}
{{- define "common.secured" -}}
{{- $own := .own | fromYaml -}}
{{- range $key, $value := .given }}
{{- if kindIs "invalid" $value }}{{ $_ := unset $own $key }}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $own $key)) }}{{ $_ := set $own $key (mergeOverwrite (get $own $key) $value) }}
{{- else }}{{ $_ := set $own $key $value }}
{{- end }}
{{- end -}}
{{- $own | toYaml -}}
{{- end }}

{{/* Names what a GPU is called here. */}}
{{- define "common.gpu" -}}
{{- (include "common.overrides" . | fromJson).gpuResource | default "nvidia.com/gpu" -}}
{{- end }}

{{/* Bytes of a size such as 512Mi. */}}
{{- define "common.bytes" -}}
{{- $factors := dict "M" 1000000 "G" 1000000000 "T" 1000000000000 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get $factors (regexFind "[A-Za-z]+$" .)) -}}
{{- end }}

{{/*
A part's resources with the extra ones, requested and limited. The scratch folders lie on the node's disk: the limit is what they may hold
and a gibibyte for logs, so that a larger folder is not evicted by a limit that was forgotten.
*/}}
{{- define "common.resources" -}}
{{- $extra := (include "common.overrides" . | fromJson).extraResources | default dict -}}
{{- $resources := deepCopy .Values.resources -}}
{{- range $side := list "requests" "limits" }}
{{- $_ := set $resources $side (merge (get $resources $side | default dict) $extra) }}
{{- end -}}
{{- if not (hasKey $resources.limits "ephemeral-storage") }}
{{- $bytes := add 1073741824 (include "common.bytes" .Values.scratch.tmp) (include "common.bytes" .Values.scratch.work) }}
{{- $_ := set $resources.limits "ephemeral-storage" (printf "%dMi" (div $bytes 1048576)) }}
{{- end -}}
{{- $resources | toYaml -}}
{{- end }}

{{/* A container's variables: ours (YAML), those of the overrides, and the part's plain settings. One of ours is refused, so that none is there twice. */}}
{{- define "common.variables" -}}
{{- $root := .root -}}
{{- $own := .own | fromYamlArray -}}
{{- $names := list -}}
{{- range $own }}{{ $names = append $names .name }}{{ end -}}
{{- $given := merge (deepCopy ($root.Values.env | default dict)) ((include "common.overrides" $root | fromJson).env | default dict) -}}
{{- range $name, $value := $given }}
{{- if has $name $names }}{{ fail (printf "%s.env or overrides.env: variable %s is set by Rolecast; it has a value of its own, or remove it" $root.Chart.Name $name) }}{{ end -}}
{{- $own = append $own (dict "name" $name (ternary "value" "valueFrom" (kindIs "string" $value)) $value) -}}
{{- end -}}
{{- $own | toYaml -}}
{{- end }}
