{{/* These objects have fixed names that launchers know: one release in a namespace has them. */}}
{{- define "learner.metadata" -}}
name: {{ .name }}
labels:
  {{- include "common.labels" .root | nindent 2 }}
{{- end }}

{{- define "learner.account" -}}
{{ include "learner.metadata" . }}
{{- include "common.accountAnnotations" .root | nindent 0 }}
{{- end }}
