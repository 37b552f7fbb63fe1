{{/* A release's name has 53 characters at most, so that with a part's name it still fits a DNS label. */}}
{{- define "common.name" -}}
{{ .Release.Name }}-{{ .Chart.Name }}
{{- end }}

{{/* Selectors cannot be changed after the first install: nothing that varies between versions belongs here. */}}
{{- define "common.selector" -}}
app.kubernetes.io/name: rolecast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .Chart.Name }}
{{- end }}

{{- define "common.podLabels" -}}
{{ include "common.selector" . }}
app.kubernetes.io/part-of: rolecast
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "common.labels" -}}
{{ include "common.podLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "common.device" -}}
{{- if hasKey .Values "device" }}{{ .Values.device | default .Values.global.device }}{{ else }}cpu{{ end }}
{{- end }}

{{/* A digest names one image whatever the tag; it is the digest of the right variant, or nothing fits. */}}
{{- define "common.image" -}}
{{- $repository := printf "%s/rolecast-%s" .Values.global.image.registry .Chart.Name -}}
{{- $variant := ternary "-cuda" "" (eq (include "common.device" .) "cuda") -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.global.image.tag | default .Chart.AppVersion }}{{ $variant }}
{{- end }}
{{- end }}
